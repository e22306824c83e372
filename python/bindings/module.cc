// normkit._core: every function of the C++ API for Python arrays. Two hops: read the arguments into views, call the
// engine.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "calls.h"
#include "docs.h"
#include "normkit/normkit.h"

namespace normkit::python {
namespace {

constexpr Op<NormArgs> kLayerNorm{"layer_norm", normkit::layer_norm, true, 1e-5};
constexpr Op<NormArgs> kRmsNorm{"rms_norm", normkit::rms_norm, false, 1e-5};
constexpr Op<NormArgs> kL2Norm{"l2_norm", normkit::l2_norm, false, 1e-12};
constexpr Op<NormGradArgs> kLayerNormBackward{"layer_norm_backward", normkit::layer_norm_backward, true, 1e-5};
constexpr Op<NormGradArgs> kRmsNormBackward{"rms_norm_backward", normkit::rms_norm_backward, false, 1e-5};
constexpr Op<NormGradArgs> kL2NormBackward{"l2_norm_backward", normkit::l2_norm_backward, false, 1e-12};

// The first normalized dimension, counted from the front. (Results are made before the engine checks its arguments.)
size_t split_of(const char* op, int axis, const View& x) {
  if (x.rank == 0) fail_value(op, "x has no dimensions, expected at least 1");
  if (axis < -x.rank || axis >= x.rank)
    fail_value(op, "axis is ", axis, ", expected ", -x.rank, " to ", x.rank - 1, " (x has ", x.rank, " dimensions)");
  return static_cast<size_t>(axis < 0 ? axis + x.rank : axis);
}

template <const Op<NormArgs>& op>
nb::object forward(nb::handle x_, nb::handle weight_, nb::handle bias_, nb::handle residual_, nb::handle eps,
                   nb::handle axis, nb::handle weight_offset, nb::handle rounding, nb::handle eps_mode,
                   nb::handle residual_stats, nb::handle out_, nb::handle residual_out_, nb::handle return_stats,
                   nb::handle threads) {
  NormArgs args;
  read_options(op.name, {eps, axis, weight_offset, rounding, eps_mode, residual_stats}, args);
  const bool stats = flag(op.name, "return_stats", return_stats);
  Operand operands[] = {{"x", x_},           {"weight", weight_},
                        {"bias", bias_},     {"residual", residual_},
                        {"out", out_, true}, {"residual_out", residual_out_, true}};
  load(op.name, operands);
  auto& [x, weight, bias, residual, out, residual_out] = operands;
  require(op.name, x);
  refuse_unused(op.name, residual_out, bool(residual), "residual");
  const int count = threads_of(op.name, threads, x);
  const std::span<const int64_t> shape = shape_of(x.view);
  const std::span<const int64_t> batch = shape.first(split_of(op.name, args.axis, x.view));

  const DType wider = dtype_size(residual.view.dtype) > dtype_size(x.view.dtype) ? residual.view.dtype : x.view.dtype;
  Result y = make_result(op.name, out, x, x.view.dtype, shape);
  Result h = residual ? make_result(op.name, residual_out, x, wider, shape) : Result{};
  Result mean = stats && op.centred ? make_result(op.name, {}, x, DType::f64, batch) : Result{};
  Result rstd = stats ? make_result(op.name, {}, x, DType::f64, batch) : Result{};

  args.x = x.view, args.weight = weight.view, args.bias = bias.view, args.residual = residual.view;
  args.y = y.view, args.residual_out = h.view, args.mean = mean.view, args.rstd = rstd.view;
  run(op.engine, args, count);

  if (!residual && !stats) return finish(out, x, y);
  nb::list results;
  results.append(finish(out, x, y));
  if (residual) results.append(finish(residual_out, x, h));
  if (mean.object.is_valid()) results.append(finish({}, x, mean));
  if (stats) results.append(finish({}, x, rstd));
  return nb::tuple(results);
}

template <const Op<NormGradArgs>& op>
nb::object backward(nb::handle dy_, nb::handle x_, nb::handle weight_, nb::handle mean_, nb::handle rstd_,
                    nb::handle residual_, nb::handle dresidual_out_, nb::handle eps, nb::handle axis,
                    nb::handle weight_offset, nb::handle rounding, nb::handle eps_mode, nb::handle residual_stats,
                    nb::handle output_mask, nb::handle dx_, nb::handle dweight_, nb::handle dbias_,
                    nb::handle accumulate, nb::handle threads) {
  NormGradArgs args;
  read_options(op.name, {eps, axis, weight_offset, rounding, eps_mode, residual_stats}, args);
  args.accumulate = flag(op.name, "accumulate", accumulate);
  const std::array<bool, 3> wanted = mask_of(op.name, output_mask);
  Operand operands[] = {{"dy", dy_},
                        {"x", x_},
                        {"weight", weight_},
                        {"mean", mean_},
                        {"rstd", rstd_},
                        {"residual", residual_},
                        {"dresidual_out", dresidual_out_},
                        {"dx", dx_, true},
                        {"dweight", dweight_, true},
                        {"dbias", dbias_, true}};
  load(op.name, operands);
  auto& [dy, x, weight, mean, rstd, residual, dresidual_out, dx, dweight, dbias] = operands;
  require(op.name, dy);
  require(op.name, x);
  refuse_unwanted(op.name, wanted, dx, dweight, dbias, args.accumulate);
  const int count = threads_of(op.name, threads, x);
  const std::span<const int64_t> shape = shape_of(x.view);
  const std::span<const int64_t> last = shape.subspan(split_of(op.name, args.axis, x.view));

  const DType wide = x.view.dtype == DType::f64 ? DType::f64 : DType::f32;
  const DType parameter = weight ? weight.view.dtype : wide;
  const std::span<const int64_t> parameter_shape = weight ? shape_of(weight.view) : last;
  Result results[3];
  if (wanted[0]) results[0] = make_result(op.name, dx, x, x.view.dtype, shape);
  if (wanted[1]) results[1] = make_result(op.name, dweight, x, parameter, parameter_shape);
  if (wanted[2]) results[2] = make_result(op.name, dbias, x, parameter, parameter_shape);

  args.dy = dy.view, args.x = x.view, args.weight = weight.view, args.mean = mean.view, args.rstd = rstd.view;
  args.residual = residual.view, args.dresidual_out = dresidual_out.view;
  args.dx = results[0].view, args.dweight = results[1].view, args.dbias = results[2].view;
  run(op.engine, args, count);

  return finish_gradients({&dx, &dweight, &dbias}, x, results);
}

// The same without a mean: rms_norm_backward, l2_norm_backward.
template <const Op<NormGradArgs>& op>
nb::object backward_uncentred(nb::handle dy, nb::handle x, nb::handle weight, nb::handle rstd, nb::handle residual,
                              nb::handle dresidual_out, nb::handle eps, nb::handle axis, nb::handle weight_offset,
                              nb::handle rounding, nb::handle eps_mode, nb::handle residual_stats,
                              nb::handle output_mask, nb::handle dx, nb::handle dweight, nb::handle dbias,
                              nb::handle accumulate, nb::handle threads) {
  return backward<op>(dy, x, weight, Py_None, rstd, residual, dresidual_out, eps, axis, weight_offset, rounding,
                      eps_mode, residual_stats, output_mask, dx, dweight, dbias, accumulate, threads);
}

using namespace nb::literals;

// .none(): None reaches the function, whose own message says what was expected.
template <const Op<NormArgs>& op>
void def_forward(nb::module_& m, const docs::Words& words) {
  m.def(op.name, &forward<op>, "x"_a.none(), "weight"_a = nb::none(), "bias"_a = nb::none(), nb::kw_only(),
        "residual"_a = nb::none(), "eps"_a.none() = op.eps, "axis"_a.none() = -1, "weight_offset"_a.none() = 0.0,
        "rounding"_a.none() = "once", "eps_mode"_a.none() = "inside", "residual_stats"_a.none() = "rounded",
        "out"_a = nb::none(), "residual_out"_a = nb::none(), "return_stats"_a.none() = false, "threads"_a = nb::none(),
        docs::forward(words).c_str());
}

template <const Op<NormGradArgs>& op>
void def_backward(nb::module_& m, const docs::Words& words, const char* forward_name) {
  const std::string doc = docs::backward(words, forward_name);
  const auto def = [&](auto function, auto... saved) {
    m.def(op.name, function, "dy"_a.none(), "x"_a.none(), "weight"_a = nb::none(), saved..., nb::kw_only(),
          "residual"_a = nb::none(), "dresidual_out"_a = nb::none(), "eps"_a.none() = op.eps, "axis"_a.none() = -1,
          "weight_offset"_a.none() = 0.0, "rounding"_a.none() = "once", "eps_mode"_a.none() = "inside",
          "residual_stats"_a.none() = "rounded", "output_mask"_a.none() = nb::make_tuple(true, true, true),
          "dx"_a = nb::none(), "dweight"_a = nb::none(), "dbias"_a = nb::none(), "accumulate"_a.none() = false,
          "threads"_a = nb::none(), doc.c_str());
  };
  if constexpr (op.centred)
    def(&backward<op>, "mean"_a = nb::none(), "rstd"_a = nb::none());
  else
    def(&backward_uncentred<op>, "rstd"_a = nb::none());
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(
      false);  // daemon threads that the interpreter leaves behind hold references; nothing is printed
  import_numpy();
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const dtype_error& e) {
      PyErr_SetString(PyExc_TypeError, in_python_words(e.what()).c_str());
    } catch (const std::invalid_argument& e) {
      PyErr_SetString(PyExc_ValueError, in_python_words(e.what()).c_str());
    }
  });
  m.doc() = docs::kModule;
  def_forward<kLayerNorm>(m, docs::kLayerNorm);
  def_forward<kRmsNorm>(m, docs::kRmsNorm);
  def_forward<kL2Norm>(m, docs::kL2Norm);
  def_backward<kLayerNormBackward>(m, docs::kLayerNorm, kLayerNorm.name);
  def_backward<kRmsNormBackward>(m, docs::kRmsNorm, kRmsNorm.name);
  def_backward<kL2NormBackward>(m, docs::kL2Norm, kL2Norm.name);
  def_channel_norms(m);
  m.def("version", &version, "The version of the engine: \"1.2.3\".");
  m.def("target", &target,
        "The instruction set in use: \"avx512\", \"avx2\", \"neon\" or \"baseline\". NORMKIT_TARGET forces one.");
  m.def("targets", &targets, "All instruction sets that this machine can run, best first.");
  m.def("cache_bytes", &cache_bytes, "Bytes of the last-level cache, as used for the choice of streaming stores.");
  m.def("available_cpus", &available_cpus, "The processors that this process may use: the default for threads.");
}

}  // namespace normkit::python
