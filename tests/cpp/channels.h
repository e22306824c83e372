// The channel norms under test: a table of cases like that of the row norms, their data, one call, and their reference.
//
// A set is what shares statistics. The elements of a case are kept set by set, [sets, set_size()], so that a set is a row
// of the row tests: data and references are theirs. Placing them into memory is what differs.
#pragma once

#include <array>

#include "reference.h"

namespace normkit::test {

enum class ChannelOp { batch, instance, group };
// How x lies in memory; `odd` fits no layout of the engine.
enum class Memory { planes, columns, planes_apart, columns_apart, odd };

struct ChannelCase {
  ChannelOp op = ChannelOp::batch;
  DType x = DType::f32, weight = DType::none, bias = DType::none, y = DType::none;  // y: none means x's type
  int64_t n = 3, c = 4, s = 10, groups = 2;                                         // groups: group only
  Memory memory = Memory::planes;
  bool last = false;  // channel_axis -1
  Dist dist = Dist::normal;
  double eps = 1e-5;
  bool training = true;  // false: by running statistics

  int64_t sets() const { return op == ChannelOp::batch ? c : n * (op == ChannelOp::group ? groups : c); }
  int64_t set_size() const { return n * c * s / sets(); }
  DType y_type() const { return y == DType::none ? x : y; }
  // Set and place of element [n][c][s].
  std::pair<int64_t, int64_t> set_of(int64_t in, int64_t ic, int64_t is) const;
  // The case as rows: one per set.
  Case rows() const;
};
std::string name_of(const ChannelCase& c);
std::ostream& operator<<(std::ostream& out, const ChannelCase& c);
const std::vector<ChannelCase>& channel_cases();

struct ChannelInputs {
  Buffer x, dy;  // [sets, set_size()]
  Buffer weight, bias, running_mean, running_var;
};
ChannelInputs make_inputs(const ChannelCase& c);

// What a forward and a backward call write; x-shaped results set by set.
struct ChannelOutputs {
  Buffer y, mean, rstd, running_mean, running_var, dx, dweight, dbias;
  friend bool operator==(const ChannelOutputs&, const ChannelOutputs&) = default;
};
std::string difference(const ChannelOutputs& a, const ChannelOutputs& b);
uint64_t hash(const ChannelOutputs& out);

void call(ChannelOp op, const ChannelNormArgs& args, const Exec& exec = {});
void call(ChannelOp op, const ChannelNormGradArgs& args, const Exec& exec = {});

// An x-shaped operand in memory.
class PlacedChannels {
 public:
  PlacedChannels(const ChannelCase& c, const Buffer& contents, Memory memory, int64_t shift = 0);
  PlacedChannels(const ChannelCase& c, DType type, Memory memory, int64_t shift = 0)
      : PlacedChannels(c, Buffer(type, c.n * c.c * c.s), memory, shift) {}
  View view();
  Buffer contents() const;

 private:
  template <class F>
  void each(const F& f) const;
  ChannelCase case_;
  std::array<int64_t, 3> strides_;  // of n, c, s
  int64_t size_ = 0;
  Buffer memory_;
};

// How a run differs from the plain one; results must not.
struct ChannelRun {
  int threads = 1;
  bool saved = false;         // backward by the forward's mean and rstd (f64) in place of computing them again
  bool in_place = false;      // y over x, dx over dy
  int64_t shift = 0;          // elements between the operands' first bytes and a 64-byte border
  bool others_dense = false;  // y, dy and dx in planes or columns, whichever x is not
};
ChannelOutputs run(const ChannelCase& c, const ChannelInputs& in, const ChannelRun& how = {});

struct ChannelReference {
  Expected y, dx, dweight, dbias;
  std::vector<long double> mean, rstd;  // per set
  std::vector<double> deviation;
  std::vector<double> running_mean, running_var;
};
ChannelReference reference(const ChannelCase& c, const ChannelInputs& in);
inline constexpr double kMomentum = 0.3;  // of all cases

// The scalar model of docs/numerics.md: the outputs that `like` holds, with the bits that the contract promises.
ChannelOutputs channel_model(const ChannelCase& c, const ChannelInputs& in, const ChannelOutputs& like);

}  // namespace normkit::test
