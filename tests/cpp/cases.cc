#include "cases.h"

#include <array>

namespace normkit::test {
namespace {

constexpr DType none = DType::none, f32 = DType::f32, f64 = DType::f64, bf16_t = DType::bf16, f16_t = DType::f16;
constexpr std::array kTypes = {f32, f64, bf16_t, f16_t};
constexpr std::array kOps = {Op::layer, Op::rms, Op::l2};

double default_eps(Op op) { return op == Op::l2 ? 1e-12 : 1e-5; }

// Every operation and type over the widths where lanes, blocks and vectors begin and end. The optional operands rotate,
// so that each width meets several of their combinations.
void add_widths(std::vector<Case>& cases) {
  constexpr std::array<int64_t, 14> kWidths = {1, 2, 7, 63, 64, 65, 96, 127, 576, 1000, 4095, 4096, 4097, 9000};
  int turn = 0;
  for (Op op : kOps) {
    for (DType x : kTypes) {
      for (int64_t cols : kWidths) {
        Case c{
            .op = op, .x = x, .rows = cols < 200 ? 9 : 3, .cols = cols, .dist = Dist::shifted, .eps = default_eps(op)};
        if (turn % 4 != 0) c.weight = turn % 4 == 1 ? f32 : x;
        if (turn % 3 != 0) c.bias = turn % 3 == 1 ? x : f32;
        if (turn % 5 == 3) c.residual = x;
        if (turn % 10 == 8) c.residual_out = x;
        cases.push_back(c);
        ++turn;
      }
    }
  }
}

void add_distributions(std::vector<Case>& cases) {
  for (Op op : kOps) {
    for (DType x : kTypes) {
      for (int d = 0; d < static_cast<int>(Dist::kinds_end); ++d) {
        Case c{.op = op, .x = x, .weight = x, .rows = 2, .cols = 5000, .dist = static_cast<Dist>(d)};
        c.bias = op == Op::layer ? x : none;
        c.eps = c.dist == Dist::tiny || c.dist == Dist::constant ? 0 : default_eps(op);
        cases.push_back(c);
      }
    }
  }
}

// Each option, with the types it mixes.
void add_options(std::vector<Case>& cases) {
  for (Op op : kOps) {
    for (DType x : kTypes) {
      const Case base{.op = op,
                      .x = x,
                      .weight = x,
                      .bias = f32,
                      .rows = 5,
                      .cols = 200,
                      .dist = Dist::shifted,
                      .eps = default_eps(op)};
      auto add = [&](auto change) {
        Case c = base;
        change(c);
        cases.push_back(c);
      };
      add([&](Case& c) { c.weight_offset = 1; });
      add([&](Case& c) { c.single_weight = true; });
      add([&](Case& c) { c.rounding = Rounding::before_weight, c.bias = none; });
      add([&](Case& c) { c.rounding = Rounding::before_weight, c.weight = f32, c.weight_offset = 1, c.y = f32; });
      add([&](Case& c) { c.y = f32, c.bias = none; });
      add([&](Case& c) { c.residual = x, c.residual_out = x; });
      add([&](Case& c) { c.residual = f32, c.bias = none, c.weight_offset = 1; });
      add([&](Case& c) { c.residual = f32, c.residual_out = x, c.residual_stats = ResidualStats::unrounded; });
      add([&](Case& c) { c.residual = x, c.residual_out = f32, c.y = f32; });
      add([&](Case& c) { c.eps = 0.5; });
      if (op == Op::l2) continue;
      add([&](Case& c) { c.eps = 0.25, c.eps_mode = EpsMode::outside; });
      add([&](Case& c) { c.eps = 0.25, c.eps_mode = EpsMode::clamp; });
      add([&](Case& c) { c.eps = 50, c.eps_mode = EpsMode::clamp, c.weight_offset = 1; });
    }
  }
}

// The combinations of operands that models use, which have loops of their own, at widths of every way to walk the rows:
// groups of rows, one row beside the next, and rows whose sum with the residual is too long to keep.
void add_combinations(std::vector<Case>& cases) {
  for (Op op : {Op::layer, Op::rms}) {
    for (DType x : kTypes) {
      for (int64_t cols : {1100, 5000, 17000}) {
        auto add = [&](DType weight, DType bias, bool residual, double offset, Rounding rounding) {
          if (cols == 17000 && !residual) return;
          cases.push_back({.op = op,
                           .x = x,
                           .weight = weight,
                           .bias = bias,
                           .residual = residual ? x : none,
                           .residual_out = residual ? x : none,
                           .rows = cols == 17000 ? 2 : 3,
                           .cols = cols,
                           .dist = Dist::shifted,
                           .weight_offset = offset,
                           .rounding = rounding});
        };
        for (bool residual : {false, true}) {
          add(none, none, residual, 0, Rounding::once);
          add(x, none, residual, 0, Rounding::once);
          add(x, x, residual, 0, Rounding::once);
          add(x, none, residual, 1, Rounding::once);
          add(x, none, residual, 0, Rounding::before_weight);
          if (x == f32) continue;
          add(f32, none, residual, 0, Rounding::once);
          add(f32, f32, residual, 0, Rounding::once);
        }
      }
    }
  }
}

// Many rows (row blocks of the weight gradients, the split over threads) and long rows (the split of one row).
void add_sizes(std::vector<Case>& cases) {
  for (DType x : kTypes) {
    cases.push_back({.op = Op::layer, .x = x, .weight = f32, .bias = f32, .rows = 1025, .cols = 32});
    cases.push_back({.op = Op::rms, .x = x, .weight = x, .rows = 321, .cols = 128});
    cases.push_back({.op = Op::rms,
                     .x = x,
                     .weight = x,
                     .residual = x,
                     .residual_out = x,
                     .rows = 130,
                     .cols = 4096,
                     .wide = true});
  }
  cases.push_back({.op = Op::layer, .x = f32, .weight = f32, .bias = f32, .rows = 130, .cols = 4100, .wide = true});
  cases.push_back(
      {.op = Op::layer, .x = f32, .weight = f32, .rows = 1, .cols = 1'000'003, .dist = Dist::far, .wide = true});
  cases.push_back({.op = Op::layer, .x = f64, .weight = f64, .rows = 1, .cols = 1'000'003, .wide = true});
  cases.push_back({.op = Op::rms, .x = bf16_t, .weight = f32, .rows = 2, .cols = 1'000'003, .wide = true});
  cases.push_back({.op = Op::l2, .x = f16_t, .rows = 1, .cols = 1'000'003, .eps = 1e-12, .wide = true});
}

const char* const kOpNames[] = {"layer_norm", "rms_norm", "l2_norm"};
const char* const kDistNames[] = {"normal",  "shifted", "far",  "constant", "ramp", "heavy",
                                  "outlier", "head",    "huge", "tiny",     "zeros"};
const char* const kModeNames[] = {"inside", "outside", "clamp"};

double element(Dist dist, DType type, Random& random, int64_t row, int64_t i, int64_t cols) {
  const bool wide_range = type == f64;
  switch (dist) {
    case Dist::normal: return random.normal();
    case Dist::shifted: return 3 + 2 * random.normal();
    case Dist::far: return (wide_range ? 1e12 : 1e4) + random.normal();
    case Dist::constant: return 1234.1 + static_cast<double>(row);
    case Dist::ramp: return (static_cast<double>(i) / static_cast<double>(cols) + static_cast<double>(row)) * 100;
    case Dist::heavy: return random.normal() / (random.uniform() + 1e-3);
    case Dist::outlier: return random.normal() * (i == cols / 3 ? 1000 : 1);
    case Dist::head: return random.normal() + (i < 64 ? 500 : 0);
    case Dist::huge: return random.normal() * (wide_range ? 1e300 : type == f16_t ? 1e4 : 1e37);
    case Dist::tiny: return random.normal() * (wide_range ? 1e-300 : type == f16_t ? 1e-6 : 1e-30);
    case Dist::zeros:
    case Dist::kinds_end: break;
  }
  return 0;
}

Buffer random_buffer(DType type, int64_t size, Random& random, double mean, double deviation) {
  Buffer b(type, size);
  for (int64_t i = 0; i < size; ++i) b.set(i, mean + deviation * random.normal());
  return b;
}

}  // namespace

uint64_t Random::bits() {  // splitmix64
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
double Random::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
double Random::normal() {  // a sum of twelve uniform numbers: no libm, so the same on every machine
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += uniform();
  return sum;
}

uint64_t fnv1a(const void* data, size_t bytes, uint64_t hash) {
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 0x100000001b3u;
  return hash;
}

std::string name_of(const Case& c) {
  std::string s = kOpNames[static_cast<int>(c.op)];
  auto operand = [&](const char* label, DType t) {
    if (t != none) s += std::string(" ") + label + dtype_name(t);
  };
  s += std::string(" ") + dtype_name(c.x);
  operand(c.single_weight ? "w1=" : "w=", c.weight);
  operand("b=", c.bias);
  operand("r=", c.residual);
  operand("ro=", c.residual_out);
  operand("y=", c.y);
  s += " " + std::to_string(c.rows) + "x" + std::to_string(c.cols) + " " + kDistNames[static_cast<int>(c.dist)];
  if (c.eps != default_eps(c.op)) s += " eps=" + std::to_string(c.eps);
  if (c.eps_mode != EpsMode::inside) s += std::string(" ") + kModeNames[static_cast<int>(c.eps_mode)];
  if (c.weight_offset != 0) s += " offset";
  if (c.rounding == Rounding::before_weight) s += " before_weight";
  if (c.residual_stats == ResidualStats::unrounded) s += " unrounded";
  return s;
}

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << name_of(c); }

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> list;
    add_widths(list);
    add_distributions(list);
    add_options(list);
    add_combinations(list);
    add_sizes(list);
    return list;
  }();
  return cases;
}

Inputs make_inputs(const Case& c) {
  const std::string name = name_of(c);
  Random random(fnv1a(name.data(), name.size()));
  const int64_t n = c.rows * c.cols;
  Inputs in;
  in.x = Buffer(c.x, n);
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t i = 0; i < c.cols; ++i) in.x.set(r * c.cols + i, element(c.dist, c.x, random, r, i, c.cols));
  if (c.weight != none) in.weight = random_buffer(c.weight, c.weight_size(), random, 0.5, 0.5);
  if (c.bias != none) in.bias = random_buffer(c.bias, c.weight_size(), random, 0, 0.5);
  if (c.residual != none) in.residual = random_buffer(c.residual, n, random, -1, 2);
  in.dy = random_buffer(c.x, n, random, 0.1, 1);
  if (c.residual != none) in.dresidual_out = random_buffer(c.x, n, random, 0, 1);
  return in;
}

}  // namespace normkit::test
