// The bits of every case, stored in the repository, on every instruction set that this machine can run.
//
// golden_test --write_golden DIR writes the tables anew. Only a change of the numeric contract is a reason to do so; it
// belongs into CHANGELOG.md.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "channels.h"

namespace normkit::test {
namespace {

struct Golden {
  const char* name;
  uint64_t hash;
};
constexpr Golden kGolden[] = {
#include "golden.inc"
};
constexpr Golden kChannelGolden[] = {
#include "golden_channels.inc"
};

template <class Cases, size_t N>
void expect_golden_bits(const Cases& cases, const Golden (&table)[N]) {
  std::map<std::string, uint64_t> golden;
  for (const Golden& g : table) golden[g.name] = g.hash;
  EXPECT_EQ(golden.size(), cases.size()) << "cases were added or removed: write the tables anew";
  for (const auto& c : cases) EXPECT_EQ(hash(run(c, make_inputs(c))), golden[name_of(c)]) << c;
}

class OnEveryTarget : public testing::TestWithParam<std::string> {};
TEST_P(OnEveryTarget, GoldenBits) {
  const OnTarget on(GetParam());
  ASSERT_EQ(target(), GetParam());
  expect_golden_bits(all_cases(), kGolden);
  expect_golden_bits(channel_cases(), kChannelGolden);
}

// The same comparison element by element, so that a difference can be found.
template <class Cases>
void expect_default_bits(const Cases& cases, const std::string& target) {
  for (const auto& c : cases) {
    const auto in = make_inputs(c);
    const auto expected = run(c, in);
    const OnTarget on(target);
    ASSERT_EQ(difference(run(c, in), expected), "") << c;
  }
}
TEST_P(OnEveryTarget, EqualsTheDefaultTarget) {
  expect_default_bits(all_cases(), GetParam());
  expect_default_bits(channel_cases(), GetParam());
}
INSTANTIATE_TEST_SUITE_P(Golden, OnEveryTarget, testing::ValuesIn(targets()),
                         [](const auto& info) { return info.param; });

TEST(Golden, CaseNamesAreUnique) {
  std::map<std::string, int> names;
  for (const Case& c : all_cases()) EXPECT_EQ(++names[name_of(c)], 1) << c;
  for (const ChannelCase& c : channel_cases()) EXPECT_EQ(++names[name_of(c)], 1) << c;
}

}  // namespace

template <class Cases>
int write_golden(const std::string& path, const Cases& cases) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file) return 1;
  for (const auto& c : cases)
    std::fprintf(file, "{\"%s\", 0x%016llx},\n", name_of(c).c_str(),
                 static_cast<unsigned long long>(hash(run(c, make_inputs(c)))));
  return std::fclose(file) == 0 ? 0 : 1;
}
int write_all(const std::string& directory) {
  return write_golden(directory + "/golden.inc", all_cases()) +
         write_golden(directory + "/golden_channels.inc", channel_cases());
}

}  // namespace normkit::test

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--write_golden") return normkit::test::write_all(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
