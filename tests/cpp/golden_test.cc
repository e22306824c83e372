// The bits of every case, stored in the repository, on every instruction set that this machine can run.
//
// golden_test --write_golden FILE writes the table anew. Only a change of the numeric contract is a reason to do so; it
// belongs into CHANGELOG.md.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "run.h"

namespace normkit::test {
namespace {

struct Golden {
  const char* name;
  uint64_t hash;
};
constexpr Golden kGolden[] = {
#include "golden.inc"
};

class OnEveryTarget : public testing::TestWithParam<std::string> {};
TEST_P(OnEveryTarget, GoldenBits) {
  std::map<std::string, uint64_t> golden;
  for (const Golden& g : kGolden) golden[g.name] = g.hash;
  EXPECT_EQ(golden.size(), all_cases().size()) << "cases were added or removed: write golden.inc anew";
  const OnTarget on(GetParam());
  ASSERT_EQ(target(), GetParam());
  for (const Case& c : all_cases()) EXPECT_EQ(hash(run(c, make_inputs(c))), golden[name_of(c)]) << c;
}

// The same comparison element by element, so that a difference can be found.
TEST_P(OnEveryTarget, EqualsTheDefaultTarget) {
  for (const Case& c : all_cases()) {
    const Inputs in = make_inputs(c);
    const Outputs expected = run(c, in);
    const OnTarget on(GetParam());
    ASSERT_EQ(difference(run(c, in), expected), "") << c;
  }
}
INSTANTIATE_TEST_SUITE_P(Golden, OnEveryTarget, testing::ValuesIn(targets()),
                         [](const auto& info) { return info.param; });

TEST(Golden, CaseNamesAreUnique) {
  std::map<std::string, int> names;
  for (const Case& c : all_cases()) EXPECT_EQ(++names[name_of(c)], 1) << c;
}

}  // namespace

int write_golden(const char* path) {
  std::FILE* file = std::fopen(path, "w");
  if (!file) return 1;
  for (const Case& c : all_cases())
    std::fprintf(file, "{\"%s\", 0x%016llx},\n", name_of(c).c_str(),
                 static_cast<unsigned long long>(hash(run(c, make_inputs(c)))));
  return std::fclose(file) == 0 ? 0 : 1;
}

}  // namespace normkit::test

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--write_golden") return normkit::test::write_golden(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
