#include "run.h"

#include "target.h"

namespace normkit::test {
namespace {

// Calls f(name, member of a, member of b) for every output.
template <class A, class B, class F>
void for_each_output(A& a, B& b, F f) {
  f("y", a.y, b.y);
  f("residual_out", a.residual_out, b.residual_out);
  f("mean", a.mean, b.mean);
  f("rstd", a.rstd, b.rstd);
  f("dx", a.dx, b.dx);
  f("dweight", a.dweight, b.dweight);
  f("dbias", a.dbias, b.dbias);
}

// Fills what both directions share.
template <class Args>
Args common_args(const Case& c, const Inputs& in) {
  Args args;
  args.x = view(in.x, {c.rows, c.cols});
  args.weight = view(in.weight, {c.weight_size()});
  args.residual = view(in.residual, {c.rows, c.cols});
  args.eps = c.eps;
  args.weight_offset = c.weight_offset;
  args.rounding = c.rounding;
  args.eps_mode = c.eps_mode;
  args.residual_stats = c.residual_stats;
  return args;
}

DType gradient_type(const Case& c) {
  if (c.weight != DType::none) return c.weight;
  return compute_type(c.x);
}

}  // namespace

std::string difference(const Outputs& a, const Outputs& b) {
  std::string text;
  for_each_output(a, b, [&](const char* name, const Buffer& u, const Buffer& v) {
    if (!text.empty() || u == v) return;
    text = name;
    if (u.dtype() != v.dtype() || u.size() != v.size()) {
      text += " has another type or size";
      return;
    }
    const int64_t i = u.first_difference(v);
    char values[80];
    std::snprintf(values, sizeof values, "[%lld]: %.17g and %.17g", static_cast<long long>(i), u.get(i), v.get(i));
    text += values;
  });
  return text;
}

void call(Op op, const NormArgs& args, const Exec& exec) {
  constexpr decltype(&layer_norm) kFunctions[] = {layer_norm, rms_norm, l2_norm};
  kFunctions[static_cast<int>(op)](args, exec);
}
void call(Op op, const NormGradArgs& args, const Exec& exec) {
  constexpr decltype(&layer_norm_backward) kFunctions[] = {layer_norm_backward, rms_norm_backward, l2_norm_backward};
  kFunctions[static_cast<int>(op)](args, exec);
}
const char* function_name(Op op, bool backward) {
  constexpr const char* kNames[][2] = {
      {"layer_norm", "layer_norm_backward"}, {"rms_norm", "rms_norm_backward"}, {"l2_norm", "l2_norm_backward"}};
  return kNames[static_cast<int>(op)][backward];
}

NormArgs forward_args(const Case& c, const Inputs& in, Outputs& out) {
  const int64_t n = c.rows * c.cols;
  out.y = Buffer(c.y_type(), n);
  if (c.residual_out != DType::none) out.residual_out = Buffer(c.residual_out, n);
  if (c.op == Op::layer) out.mean = Buffer(DType::f64, c.rows);
  out.rstd = Buffer(DType::f64, c.rows);
  NormArgs args = common_args<NormArgs>(c, in);
  args.bias = view(in.bias, {c.weight_size()});
  args.y = view(out.y, {c.rows, c.cols});
  args.residual_out = view(out.residual_out, {c.rows, c.cols});
  args.mean = view(out.mean, {c.rows});
  args.rstd = view(out.rstd, {c.rows});
  return args;
}

NormGradArgs backward_args(const Case& c, const Inputs& in, Outputs& out) {
  out.dx = Buffer(c.x, c.rows * c.cols);
  // Without a weight dweight still has a meaning: the gradient of a weight of ones.
  out.dweight = Buffer(gradient_type(c), c.weight_size());
  out.dbias = Buffer(compute_type(c.x), c.weight_size());
  NormGradArgs args = common_args<NormGradArgs>(c, in);
  args.dy = view(in.dy, {c.rows, c.cols});
  args.dresidual_out = view(in.dresidual_out, {c.rows, c.cols});
  args.dx = view(out.dx, {c.rows, c.cols});
  args.dweight = view(out.dweight, {c.weight_size()});
  args.dbias = view(out.dbias, {c.weight_size()});
  return args;
}

Outputs forward(const Case& c, const Inputs& in, const Exec& exec) {
  Outputs out;
  call(c.op, forward_args(c, in, out), exec);
  return out;
}
Outputs backward(const Case& c, const Inputs& in, const Exec& exec) {
  Outputs out;
  call(c.op, backward_args(c, in, out), exec);
  return out;
}
Outputs run(const Case& c, const Inputs& in, const Exec& exec) {
  Outputs out;
  call(c.op, forward_args(c, in, out), exec);
  call(c.op, backward_args(c, in, out), exec);
  return out;
}

uint64_t hash_bits(const Buffer& b, uint64_t h) {
  const size_t width = static_cast<size_t>(dtype_size(b.dtype()));
  for (int64_t i = 0; i < b.size(); ++i) {
    if (std::isnan(b.get(i))) {
      h = fnv1a("nan", 3, h);
    } else {
      h = fnv1a(b.data() + static_cast<size_t>(i) * width, width, h);
    }
  }
  return h;
}
uint64_t hash(const Outputs& out) {
  uint64_t h = fnv1a(nullptr, 0);
  for_each_output(out, out, [&](const char*, const Buffer& b, const Buffer&) { h = hash_bits(b, h); });
  return h;
}

Buffer take_rows(const Buffer& b, int64_t row_size, const std::vector<int64_t>& order) {
  if (!b) return {};
  Buffer taken(b.dtype(), static_cast<int64_t>(order.size()) * row_size);
  const int64_t bytes = row_size * dtype_size(b.dtype());
  for (size_t r = 0; r < order.size(); ++r)
    std::memcpy(taken.data() + static_cast<int64_t>(r) * bytes, b.data() + order[r] * bytes,
                static_cast<size_t>(bytes));
  return taken;
}

Inputs take_rows(const Case& c, const Inputs& in, const std::vector<int64_t>& order) {
  Inputs taken{.x = take_rows(in.x, c.cols, order),
               .weight = in.weight,
               .bias = in.bias,
               .residual = {},
               .dy = {},
               .dresidual_out = {}};
  taken.residual = take_rows(in.residual, c.cols, order);
  taken.dy = take_rows(in.dy, c.cols, order);
  taken.dresidual_out = take_rows(in.dresidual_out, c.cols, order);
  return taken;
}

OnTarget::OnTarget(const std::string& name) : before_(target()) { set_target(name.c_str()); }
OnTarget::~OnTarget() { set_target(before_.c_str()); }

}  // namespace normkit::test
