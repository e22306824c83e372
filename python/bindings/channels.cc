// The channel norms for Python arrays: batch_norm, instance_norm, group_norm and their backward.
#include <nanobind/stl/string.h>

#include "calls.h"
#include "channel_docs.h"
#include "normkit/channel_norm.h"

namespace normkit::python {
namespace {

constexpr Op<ChannelNormArgs> kBatchNorm{"batch_norm", normkit::batch_norm, true, 1e-5};
constexpr Op<ChannelNormArgs> kInstanceNorm{"instance_norm", normkit::instance_norm, true, 1e-5};
constexpr Op<ChannelNormArgs> kGroupNorm{"group_norm", normkit::group_norm, true, 1e-5};
constexpr Op<ChannelNormGradArgs> kBatchNormBackward{"batch_norm_backward", normkit::batch_norm_backward, true, 1e-5};
constexpr Op<ChannelNormGradArgs> kInstanceNormBackward{"instance_norm_backward", normkit::instance_norm_backward, true,
                                                        1e-5};
constexpr Op<ChannelNormGradArgs> kGroupNormBackward{"group_norm_backward", normkit::group_norm_backward, true, 1e-5};
constexpr const char* kRunningUpdates[] = {"torch", "keras"};

int64_t groups_of(const char* op, nb::handle groups) {
  const int count = integer(op, "groups", groups);
  if (count < 1) fail_value(op, "groups is ", count, ", expected 1 or more");
  return count;
}

// The channels of x. (Results are made before the engine checks its arguments.)
int64_t channels_of(const char* op, const View& x, int channel_axis) {
  if (channel_axis != 1 && channel_axis != -1)
    fail_value(op, "channel_axis is ", channel_axis, ", expected 1 (channels first) or -1 (channels last)");
  if (x.rank < 2) fail_value(op, "x has ", x.rank, " dimensions, expected 2 or more (samples, channels, positions)");
  return x.shape[static_cast<size_t>(channel_axis == 1 ? 1 : x.rank - 1)];
}

// What forward functions share once their arguments are read.
struct Forward {
  nb::handle x, weight, bias, running_mean, running_var, eps, channel_axis, out, return_stats, threads;
};
nb::object forward(const Op<ChannelNormArgs>& op, const Forward& f, ChannelNormArgs& args) {
  args.eps = number(op.name, "eps", f.eps);
  args.channel_axis = integer(op.name, "channel_axis", f.channel_axis);
  const bool stats = flag(op.name, "return_stats", f.return_stats);
  if (stats && !args.training)
    fail_value(op.name, "return_stats is True, expected False when training is False: no statistics are computed");
  Operand operands[] = {{"x", f.x},
                        {"weight", f.weight},
                        {"bias", f.bias},
                        {"running_mean", f.running_mean, args.training},
                        {"running_var", f.running_var, args.training},
                        {"out", f.out, true}};
  load(op.name, operands);
  auto& [x, weight, bias, running_mean, running_var, out] = operands;
  require(op.name, x);
  const int count = threads_of(op.name, f.threads, x);
  const int64_t channels = channels_of(op.name, x.view, args.channel_axis);
  const int64_t per_sample[] = {x.view.shape[0], args.groups > 0 ? args.groups : channels};
  const std::span<const int64_t> sets = op.engine == normkit::batch_norm ? std::span<const int64_t>(per_sample + 1, 1)
                                                                         : std::span<const int64_t>(per_sample);

  Result y = make_result_like(op.name, out, x, x.view.dtype);
  Result mean = stats ? make_result(op.name, {}, x, DType::f64, sets) : Result{};
  Result rstd = stats ? make_result(op.name, {}, x, DType::f64, sets) : Result{};
  args.x = x.view, args.weight = weight.view, args.bias = bias.view, args.y = y.view;
  args.mean = mean.view, args.rstd = rstd.view;
  args.running_mean = running_mean.view, args.running_var = running_var.view;
  run(op.engine, args, count);
  if (!stats) return finish(out, x, y);
  return nb::make_tuple(finish(out, x, y), finish({}, x, mean), finish({}, x, rstd));
}

template <const Op<ChannelNormArgs>& op>
nb::object with_running(nb::handle x, nb::handle weight, nb::handle bias, nb::handle running_mean,
                        nb::handle running_var, nb::handle training, nb::handle momentum, nb::handle running_update,
                        nb::handle eps, nb::handle channel_axis, nb::handle out, nb::handle return_stats,
                        nb::handle threads) {
  ChannelNormArgs args;
  args.training = flag(op.name, "training", training);
  args.momentum = number(op.name, "momentum", momentum);
  args.running_update = choice<RunningUpdate>(op.name, "running_update", running_update, kRunningUpdates);
  return forward(op, {x, weight, bias, running_mean, running_var, eps, channel_axis, out, return_stats, threads}, args);
}

nb::object by_groups(nb::handle x, nb::handle groups, nb::handle weight, nb::handle bias, nb::handle eps,
                     nb::handle channel_axis, nb::handle out, nb::handle return_stats, nb::handle threads) {
  ChannelNormArgs args;
  args.groups = groups_of(kGroupNorm.name, groups);
  return forward(kGroupNorm, {x, weight, bias, Py_None, Py_None, eps, channel_axis, out, return_stats, threads}, args);
}

struct Backward {
  nb::handle dy, x, weight, mean, rstd, running_mean, running_var, eps, channel_axis, output_mask, dx, dweight, dbias,
      accumulate, threads;
};
nb::object backward(const Op<ChannelNormGradArgs>& op, const Backward& b, ChannelNormGradArgs& args) {
  args.eps = number(op.name, "eps", b.eps);
  args.channel_axis = integer(op.name, "channel_axis", b.channel_axis);
  args.accumulate = flag(op.name, "accumulate", b.accumulate);
  const std::array<bool, 3> wanted = mask_of(op.name, b.output_mask);
  Operand operands[] = {{"dy", b.dy},
                        {"x", b.x},
                        {"weight", b.weight},
                        {"mean", b.mean},
                        {"rstd", b.rstd},
                        {"running_mean", b.running_mean},
                        {"running_var", b.running_var},
                        {"dx", b.dx, true},
                        {"dweight", b.dweight, true},
                        {"dbias", b.dbias, true}};
  load(op.name, operands);
  auto& [dy, x, weight, mean, rstd, running_mean, running_var, dx, dweight, dbias] = operands;
  require(op.name, dy);
  require(op.name, x);
  refuse_unwanted(op.name, wanted, dx, dweight, dbias, args.accumulate);
  const int count = threads_of(op.name, b.threads, x);
  const int64_t channels[] = {channels_of(op.name, x.view, args.channel_axis)};

  const DType wide = x.view.dtype == DType::f64 ? DType::f64 : DType::f32;
  const DType parameter = weight ? weight.view.dtype : wide;
  Result results[3];
  if (wanted[0]) results[0] = make_result_like(op.name, dx, x, x.view.dtype);
  if (wanted[1]) results[1] = make_result(op.name, dweight, x, parameter, channels);
  if (wanted[2]) results[2] = make_result(op.name, dbias, x, parameter, channels);
  args.dy = dy.view, args.x = x.view, args.weight = weight.view, args.mean = mean.view, args.rstd = rstd.view;
  args.running_mean = running_mean.view, args.running_var = running_var.view;
  args.dx = results[0].view, args.dweight = results[1].view, args.dbias = results[2].view;
  run(op.engine, args, count);
  return finish_gradients({&dx, &dweight, &dbias}, x, results);
}

template <const Op<ChannelNormGradArgs>& op>
nb::object backward_with_running(nb::handle dy, nb::handle x, nb::handle weight, nb::handle mean, nb::handle rstd,
                                 nb::handle running_mean, nb::handle running_var, nb::handle training, nb::handle eps,
                                 nb::handle channel_axis, nb::handle output_mask, nb::handle dx, nb::handle dweight,
                                 nb::handle dbias, nb::handle accumulate, nb::handle threads) {
  ChannelNormGradArgs args;
  args.training = flag(op.name, "training", training);
  return backward(op,
                  {dy, x, weight, mean, rstd, running_mean, running_var, eps, channel_axis, output_mask, dx, dweight,
                   dbias, accumulate, threads},
                  args);
}

nb::object backward_by_groups(nb::handle dy, nb::handle x, nb::handle groups, nb::handle weight, nb::handle mean,
                              nb::handle rstd, nb::handle eps, nb::handle channel_axis, nb::handle output_mask,
                              nb::handle dx, nb::handle dweight, nb::handle dbias, nb::handle accumulate,
                              nb::handle threads) {
  ChannelNormGradArgs args;
  args.groups = groups_of(kGroupNormBackward.name, groups);
  return backward(kGroupNormBackward,
                  {dy, x, weight, mean, rstd, Py_None, Py_None, eps, channel_axis, output_mask, dx, dweight, dbias,
                   accumulate, threads},
                  args);
}

using namespace nb::literals;

template <const Op<ChannelNormArgs>& op>
void def_with_running(nb::module_& m, const docs::ChannelWords& words) {
  m.def(op.name, &with_running<op>, "x"_a.none(), "weight"_a = nb::none(), "bias"_a = nb::none(), nb::kw_only(),
        "running_mean"_a = nb::none(), "running_var"_a = nb::none(), "training"_a.none() = true,
        "momentum"_a.none() = 0.1, "running_update"_a.none() = "torch", "eps"_a.none() = op.eps,
        "channel_axis"_a.none() = 1, "out"_a = nb::none(), "return_stats"_a.none() = false, "threads"_a = nb::none(),
        docs::channel_forward(words).c_str());
}
template <const Op<ChannelNormGradArgs>& op>
void def_backward_with_running(nb::module_& m, const docs::ChannelWords& words) {
  m.def(op.name, &backward_with_running<op>, "dy"_a.none(), "x"_a.none(), "weight"_a = nb::none(),
        "mean"_a = nb::none(), "rstd"_a = nb::none(), nb::kw_only(), "running_mean"_a = nb::none(),
        "running_var"_a = nb::none(), "training"_a.none() = true, "eps"_a.none() = op.eps, "channel_axis"_a.none() = 1,
        "output_mask"_a.none() = nb::make_tuple(true, true, true), "dx"_a = nb::none(), "dweight"_a = nb::none(),
        "dbias"_a = nb::none(), "accumulate"_a.none() = false, "threads"_a = nb::none(),
        docs::channel_backward(words).c_str());
}

}  // namespace

void def_channel_norms(nb::module_& m) {
  def_with_running<kBatchNorm>(m, docs::kBatchNorm);
  def_with_running<kInstanceNorm>(m, docs::kInstanceNorm);
  m.def(kGroupNorm.name, &by_groups, "x"_a.none(), "groups"_a.none(), "weight"_a = nb::none(), "bias"_a = nb::none(),
        nb::kw_only(), "eps"_a.none() = kGroupNorm.eps, "channel_axis"_a.none() = 1, "out"_a = nb::none(),
        "return_stats"_a.none() = false, "threads"_a = nb::none(), docs::channel_forward(docs::kGroupNorm).c_str());
  def_backward_with_running<kBatchNormBackward>(m, docs::kBatchNorm);
  def_backward_with_running<kInstanceNormBackward>(m, docs::kInstanceNorm);
  m.def(kGroupNormBackward.name, &backward_by_groups, "dy"_a.none(), "x"_a.none(), "groups"_a.none(),
        "weight"_a = nb::none(), "mean"_a = nb::none(), "rstd"_a = nb::none(), nb::kw_only(),
        "eps"_a.none() = kGroupNormBackward.eps, "channel_axis"_a.none() = 1,
        "output_mask"_a.none() = nb::make_tuple(true, true, true), "dx"_a = nb::none(), "dweight"_a = nb::none(),
        "dbias"_a = nb::none(), "accumulate"_a.none() = false, "threads"_a = nb::none(),
        docs::channel_backward(docs::kGroupNorm).c_str());
}

}  // namespace normkit::python
