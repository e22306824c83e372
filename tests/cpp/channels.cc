#include "channels.h"

#include <array>

namespace normkit::test {
namespace {

constexpr DType none = DType::none, f32 = DType::f32, f64 = DType::f64, bf16_t = DType::bf16, f16_t = DType::f16;
constexpr std::array kTypes = {f32, f64, bf16_t, f16_t};
constexpr std::array kOps = {ChannelOp::batch, ChannelOp::instance, ChannelOp::group};
const char* const kOpNames[] = {"batch_norm", "instance_norm", "group_norm"};
const char* const kMemoryNames[] = {"planes", "columns", "planes_apart", "columns_apart", "odd"};

// Sizes where pairs, lanes, blocks of positions and blocks of a run begin and end.
void add_sizes(std::vector<ChannelCase>& cases) {
  struct Size {
    int64_t n, c, s, groups;
  };
  constexpr Size kSizes[] = {{1, 1, 1, 1},   {2, 3, 1, 1},    {5, 6, 7, 2},    {3, 4, 49, 2},   {2, 64, 9, 8},
                             {2, 65, 3, 5},  {1, 2, 4096, 1}, {2, 2, 4100, 2}, {3, 5, 255, 5},  {1, 32, 257, 4},
                             {9, 40, 64, 8}, {2, 1030, 2, 2}, {300, 17, 1, 1}, {2, 16, 300, 16}};
  int turn = 0;
  for (ChannelOp op : kOps) {
    for (DType x : kTypes) {
      for (const Size& size : kSizes) {
        for (Memory memory : {Memory::planes, Memory::columns}) {
          ChannelCase c{
              .op = op, .x = x, .n = size.n, .c = size.c, .s = size.s, .groups = size.groups, .memory = memory};
          c.dist = Dist::shifted;
          c.last = turn % 3 == 1;
          if (turn % 4 != 0) c.weight = turn % 4 == 1 ? f32 : x;
          if (turn % 5 > 1) c.bias = turn % 5 == 2 ? x : f32;
          if (turn % 7 == 6) c.y = f32;
          cases.push_back(c);
          ++turn;
        }
      }
    }
  }
}

void add_distributions(std::vector<ChannelCase>& cases) {
  for (ChannelOp op : kOps)
    for (DType x : kTypes)
      for (int d = 0; d < static_cast<int>(Dist::kinds_end); ++d)
        for (Memory memory : {Memory::planes, Memory::columns}) {
          ChannelCase c{.op = op, .x = x, .weight = x, .bias = x, .n = 2, .c = 6, .s = 700, .memory = memory};
          c.dist = static_cast<Dist>(d);
          c.eps = c.dist == Dist::tiny || c.dist == Dist::constant ? 0 : 1e-5;
          cases.push_back(c);
        }
}

void add_layouts(std::vector<ChannelCase>& cases) {
  for (ChannelOp op : kOps)
    for (DType x : {f32, bf16_t})
      for (Memory memory : {Memory::planes_apart, Memory::columns_apart, Memory::odd})
        for (bool last : {false, true})
          cases.push_back(
              {.op = op, .x = x, .weight = f32, .c = 20, .s = 33, .groups = 4, .memory = memory, .last = last});
}

void add_running(std::vector<ChannelCase>& cases) {
  for (ChannelOp op : {ChannelOp::batch, ChannelOp::instance})
    for (DType x : kTypes)
      for (Memory memory : {Memory::planes, Memory::columns, Memory::odd})
        for (Dist dist : {Dist::shifted, Dist::huge, Dist::tiny}) {
          ChannelCase c{.op = op, .x = x, .weight = x, .bias = f32, .c = 19, .s = 40, .memory = memory, .dist = dist};
          c.training = false;
          if (dist == Dist::tiny) c.bias = none;
          cases.push_back(c);
        }
}

std::array<int64_t, 3> strides_of(const ChannelCase& c, Memory memory) {
  switch (memory) {
    case Memory::planes: return {c.c * c.s, c.s, 1};
    case Memory::columns: return {c.c * c.s, 1, c.c};
    case Memory::planes_apart: return {c.c * (c.s + 3) + 5, c.s + 3, 1};
    case Memory::columns_apart: return {c.s * (c.c + 3) + 7, 1, c.c + 3};
    case Memory::odd: return {2, 2 * c.n * c.s, 2 * c.n};
  }
  return {};
}

// Calls f(name, member of a, member of b) for every output.
template <class A, class B, class F>
void for_each_output(A& a, B& b, F f) {
  f("y", a.y, b.y);
  f("mean", a.mean, b.mean);
  f("rstd", a.rstd, b.rstd);
  f("running_mean", a.running_mean, b.running_mean);
  f("running_var", a.running_var, b.running_var);
  f("dx", a.dx, b.dx);
  f("dweight", a.dweight, b.dweight);
  f("dbias", a.dbias, b.dbias);
}

int64_t channel_of(const ChannelCase& c, int64_t set, int64_t i) {
  if (c.op == ChannelOp::batch) return set;
  if (c.op == ChannelOp::instance) return set % c.c;
  return set % c.groups * (c.c / c.groups) + i / c.s;
}

template <class Args>
Args common_args(const ChannelCase& c, const ChannelInputs& in) {
  Args args;
  args.weight = view(in.weight, {c.c});
  args.eps = c.eps;
  args.training = c.training;
  args.channel_axis = c.last ? -1 : 1;
  args.groups = c.op == ChannelOp::group ? c.groups : 0;
  return args;
}

// The statistics that normalize a set, and results, in extended precision for f64.
template <class Real>
ChannelReference reference_in(const ChannelCase& c, const ChannelInputs& in) {
  const int64_t sets = c.sets(), size = c.set_size(), total = sets * size;
  Case rows = c.rows();
  Inputs data;
  data.x = in.x;
  data.dy = Buffer(f64, total);
  const auto weight = [&](int64_t set, int64_t i) { return in.weight ? in.weight.get(channel_of(c, set, i)) : 1.0; };
  for (int64_t set = 0; set < sets; ++set)
    for (int64_t i = 0; i < size; ++i) data.dy.set(set * size + i, in.dy.get(set * size + i) * weight(set, i));
  const Reference ref = normkit::test::reference(rows, data);  // of xhat, and of dx with dy * weight as its dy

  ChannelReference out{
      Expected(total), Expected(total), Expected(c.c), Expected(c.c), ref.mean, ref.rstd, ref.deviation, {}, {}};
  std::vector<Real> dweight(static_cast<size_t>(c.c)), dbias(dweight.size());
  for (int64_t set = 0; set < sets; ++set)
    for (int64_t i = 0; i < size; ++i) {
      const size_t k = static_cast<size_t>(set * size + i), channel = static_cast<size_t>(channel_of(c, set, i));
      const double w = weight(set, i), b = in.bias ? in.bias.get(static_cast<int64_t>(channel)) : 0;
      const double dy = in.dy.get(static_cast<int64_t>(k));
      long double xhat = ref.y.value[k];
      if (c.training) {
        out.dx.value[k] = ref.dx.value[k];
        out.dx.scale[k] = ref.dx.scale[k];
      } else {
        const Real mean = in.running_mean.get(static_cast<int64_t>(channel));
        const Real rstd = 1 / std::sqrt(static_cast<Real>(in.running_var.get(static_cast<int64_t>(channel))) +
                                        static_cast<Real>(c.eps));
        xhat = static_cast<long double>((in.x.get(static_cast<int64_t>(k)) - mean) * rstd);
        out.dx.value[k] = static_cast<long double>(dy * rstd * w);
        out.dx.scale[k] = static_cast<double>(rstd) * std::abs(dy * w);
      }
      const double magnitude = std::abs(static_cast<double>(xhat)) + 1;
      out.y.value[k] = xhat * w + b;
      out.y.scale[k] = std::abs(w) * magnitude + std::abs(b);
      dweight[channel] += static_cast<Real>(dy * xhat);
      dbias[channel] += dy;
      out.dweight.scale[channel] += std::abs(dy) * magnitude;
      out.dbias.scale[channel] += std::abs(dy);
    }
  for (size_t i = 0; i < dweight.size(); ++i) {
    out.dweight.value[i] = static_cast<long double>(dweight[i]);
    out.dbias.value[i] = static_cast<long double>(dbias[i]);
  }
  if (c.op == ChannelOp::group) return out;
  for (int64_t channel = 0; channel < c.c; ++channel) {
    double mean = 0, var = 0;
    const int64_t samples = sets / c.c;
    for (int64_t n = 0; n < samples; ++n) {
      const size_t set = static_cast<size_t>(n * c.c + channel);
      mean += static_cast<double>(ref.mean[set]);
      var += ref.deviation[set] * ref.deviation[set];
    }
    const double unbiased = size > 1 ? static_cast<double>(size) / static_cast<double>(size - 1) : 1;
    out.running_mean.push_back((1 - kMomentum) * in.running_mean.get(channel) +
                               kMomentum * mean / static_cast<double>(samples));
    out.running_var.push_back((1 - kMomentum) * in.running_var.get(channel) +
                              kMomentum * unbiased * var / static_cast<double>(samples));
  }
  return out;
}

}  // namespace

std::pair<int64_t, int64_t> ChannelCase::set_of(int64_t in, int64_t ic, int64_t is) const {
  if (op == ChannelOp::batch) return {ic, in * s + is};
  if (op == ChannelOp::instance) return {in * c + ic, is};
  const int64_t each = c / groups;
  return {in * groups + ic / each, ic % each * s + is};
}
Case ChannelCase::rows() const {
  return {.op = Op::layer, .x = x, .rows = sets(), .cols = set_size(), .dist = dist, .eps = eps};
}

std::string name_of(const ChannelCase& c) {
  std::string s = std::string(kOpNames[static_cast<int>(c.op)]) + " " + dtype_name(c.x);
  auto operand = [&](const char* label, DType t) {
    if (t != none) s += std::string(" ") + label + dtype_name(t);
  };
  operand("w=", c.weight);
  operand("b=", c.bias);
  operand("y=", c.y);
  s += " " + std::to_string(c.n) + "x" + std::to_string(c.c) + "x" + std::to_string(c.s);
  if (c.op == ChannelOp::group) s += " groups=" + std::to_string(c.groups);
  s += std::string(" ") + kMemoryNames[static_cast<int>(c.memory)] + (c.last ? " last" : "");
  const std::string rows = name_of(c.rows());
  s += rows.substr(rows.rfind('x') + 1 + std::to_string(c.set_size()).size());  // distribution and eps
  if (!c.training) s += " running";
  return s;
}
std::ostream& operator<<(std::ostream& out, const ChannelCase& c) { return out << name_of(c); }

const std::vector<ChannelCase>& channel_cases() {
  static const std::vector<ChannelCase> cases = [] {
    std::vector<ChannelCase> list;
    add_sizes(list);
    add_distributions(list);
    add_layouts(list);
    add_running(list);
    return list;
  }();
  return cases;
}

ChannelInputs make_inputs(const ChannelCase& c) {
  Inputs rows = make_inputs(c.rows());
  const std::string name = name_of(c);
  Random random(fnv1a(name.data(), name.size()));
  ChannelInputs in{std::move(rows.x), std::move(rows.dy), {}, {}, {}, {}};
  const auto fill = [&](DType t, double mean, double deviation) {
    Buffer b(t, c.c);
    for (int64_t i = 0; i < c.c; ++i) b.set(i, mean + deviation * random.normal());
    return b;
  };
  if (c.weight != none) in.weight = fill(c.weight, 0.5, 0.5);
  if (c.bias != none) in.bias = fill(c.bias, 0, 0.5);
  if (c.op == ChannelOp::group) return in;
  in.running_mean = fill(f64, 0.1, 1);
  in.running_var = fill(f64, 4, 0.5);
  // Running statistics of the data's size.
  const double size = c.training             ? 1
                      : c.dist == Dist::huge ? (c.x == f64 ? 1e290 : 1e36)
                      : c.dist == Dist::tiny ? 1e-30
                                             : 1;
  for (int64_t i = 0; i < c.c; ++i) {
    in.running_mean.set(i, in.running_mean.get(i) * (c.x == f16_t ? 1 : size));
    if (c.x != f16_t && c.x != f64) in.running_var.set(i, in.running_var.get(i) * size * size);
  }
  return in;
}

std::string difference(const ChannelOutputs& a, const ChannelOutputs& b) {
  std::string text;
  for_each_output(a, b, [&](const char* name, const Buffer& u, const Buffer& v) {
    if (!text.empty() || u == v) return;
    const int64_t i = u.dtype() == v.dtype() && u.size() == v.size() ? u.first_difference(v) : -1;
    text = std::string(name) +
           (i < 0 ? " has another type or size"
                  : "[" + std::to_string(i) + "]: " + std::to_string(u.get(i)) + " and " + std::to_string(v.get(i)));
  });
  return text;
}

uint64_t hash(const ChannelOutputs& out) {
  uint64_t h = fnv1a(nullptr, 0);
  for_each_output(out, out, [&](const char*, const Buffer& b, const Buffer&) { h = hash_bits(b, h); });
  return h;
}

void call(ChannelOp op, const ChannelNormArgs& args, const Exec& exec) {
  constexpr decltype(&batch_norm) kFunctions[] = {batch_norm, instance_norm, group_norm};
  kFunctions[static_cast<int>(op)](args, exec);
}
void call(ChannelOp op, const ChannelNormGradArgs& args, const Exec& exec) {
  constexpr decltype(&batch_norm_backward) kFunctions[] = {batch_norm_backward, instance_norm_backward,
                                                           group_norm_backward};
  kFunctions[static_cast<int>(op)](args, exec);
}

PlacedChannels::PlacedChannels(const ChannelCase& c, const Buffer& contents, Memory memory, int64_t shift)
    : case_(c), strides_(strides_of(c, memory)) {
  const int64_t span =
      c.n && c.c && c.s ? (c.n - 1) * strides_[0] + (c.c - 1) * strides_[1] + (c.s - 1) * strides_[2] + 1 : 0;
  memory_ = Buffer(contents.dtype(), span, shift);
  each([&](int64_t at, int64_t i) { memory_.set(at, contents.get(i)); });
}
template <class F>
void PlacedChannels::each(const F& f) const {
  for (int64_t n = 0; n < case_.n; ++n)
    for (int64_t c = 0; c < case_.c; ++c)
      for (int64_t s = 0; s < case_.s; ++s) {
        const auto [set, i] = case_.set_of(n, c, s);
        f(n * strides_[0] + c * strides_[1] + s * strides_[2], set * case_.set_size() + i);
      }
}
View PlacedChannels::view() {
  if (case_.last)
    return strided<View>(memory_, 0, {case_.n, case_.s, case_.c}, {strides_[0], strides_[2], strides_[1]});
  return strided<View>(memory_, 0, {case_.n, case_.c, case_.s}, {strides_[0], strides_[1], strides_[2]});
}
Buffer PlacedChannels::contents() const {
  Buffer b(memory_.dtype(), case_.n * case_.c * case_.s);
  const int64_t width = dtype_size(b.dtype());
  each([&](int64_t at, int64_t i) {
    std::memcpy(b.data() + i * width, memory_.data() + at * width, static_cast<size_t>(width));
  });
  return b;
}

ChannelOutputs run(const ChannelCase& c, const ChannelInputs& in, const ChannelRun& how) {
  const bool in_planes = c.memory == Memory::planes || c.memory == Memory::planes_apart;
  const Memory other = !how.others_dense ? c.memory : in_planes ? Memory::columns : Memory::planes;
  const Exec exec{how.threads};
  ChannelOutputs out;
  PlacedChannels x(c, in.x, c.memory, how.shift), dy(c, in.dy, other, how.shift);
  PlacedChannels y(c, c.y_type(), other, 2 * how.shift), dx(c, c.x, other, 2 * how.shift);
  PlacedChannels forward_x(c, in.x, c.memory, how.shift);
  const bool over_x = how.in_place && c.y_type() == c.x;

  ChannelNormArgs args = common_args<ChannelNormArgs>(c, in);
  args.x = forward_x.view();
  args.bias = view(in.bias, {c.c});
  args.y = over_x ? forward_x.view() : y.view();
  args.momentum = kMomentum;
  out.running_mean = in.running_mean;
  out.running_var = in.running_var;
  args.running_mean = view(out.running_mean, {c.c});
  args.running_var = view(out.running_var, {c.c});
  Buffer mean(f64, c.sets()), rstd(f64, c.sets());
  const auto per_set = [&](auto& b) {
    if (c.op == ChannelOp::batch) return view(b, {c.c});
    return view(b, {c.n, c.sets() / c.n});
  };
  if (c.training) args.mean = per_set(mean), args.rstd = per_set(rstd);
  call(c.op, args, exec);
  out.y = (over_x ? forward_x : y).contents();
  if (c.training) out.mean = mean, out.rstd = rstd;

  ChannelNormGradArgs grad = common_args<ChannelNormGradArgs>(c, in);
  grad.x = x.view();
  grad.dy = dy.view();
  grad.dx = how.in_place ? dy.view() : dx.view();
  if (!c.training) {
    grad.running_mean = view(in.running_mean, {c.c});
    grad.running_var = view(in.running_var, {c.c});
  } else if (how.saved) {
    grad.mean = per_set(mean), grad.rstd = per_set(rstd);
  }
  out.dweight = Buffer(c.weight == none ? compute_type(c.x) : c.weight, c.c);
  out.dbias = Buffer(compute_type(c.x), c.c);
  grad.dweight = view(out.dweight, {c.c});
  grad.dbias = view(out.dbias, {c.c});
  call(c.op, grad, exec);
  out.dx = (how.in_place ? dy : dx).contents();
  return out;
}

ChannelReference reference(const ChannelCase& c, const ChannelInputs& in) {
  return c.x == DType::f64 ? reference_in<long double>(c, in) : reference_in<double>(c, in);
}

}  // namespace normkit::test
