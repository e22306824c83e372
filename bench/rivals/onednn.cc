// oneDNN's layer normalization behind four C functions, for bench/rivals/onednn.py. Primitives, memory objects and the
// stream are made once; a run only executes, as oneDNN's own documentation asks for.
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"

namespace {

using dnnl::memory;
using dnnl::normalization_flags;
using dnnl::prop_kind;

struct Operands {  // null where the case has none
  void *x, *residual, *h, *weight, *bias, *y, *dy, *dx, *dweight, *dbias;
};

struct Step {
  dnnl::primitive primitive;
  std::unordered_map<int, memory> arguments;
};

struct Plan {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<Step> steps;

  memory at(const memory::desc& desc, void* data) { return {desc, engine, data}; }
};

memory::data_type type_of(int dtype) {
  return dtype == 0 ? memory::data_type::f32 : dtype == 1 ? memory::data_type::bf16 : memory::data_type::f16;
}

void add_residual(Plan& plan, const memory::desc& matrix, const Operands& o) {
  const dnnl::binary::primitive_desc add(plan.engine, dnnl::algorithm::binary_add, matrix, matrix, matrix);
  plan.steps.push_back({dnnl::binary(add),
                        {{DNNL_ARG_SRC_0, plan.at(matrix, o.x)},
                         {DNNL_ARG_SRC_1, plan.at(matrix, o.residual)},
                         {DNNL_ARG_DST, plan.at(matrix, o.h)}}});
}

std::unique_ptr<Plan> make_plan(int rms, int backward, int dtype, int64_t rows, int64_t cols, float eps,
                                const Operands& o) {
  auto plan = std::make_unique<Plan>();
  const memory::desc matrix({rows, cols}, type_of(dtype), memory::format_tag::ab);
  const memory::desc stats({rows}, memory::data_type::f32, memory::format_tag::a);
  const memory::desc width({cols}, memory::data_type::f32, memory::format_tag::a);
  auto flags = normalization_flags::use_scale;
  if (rms)
    flags |= normalization_flags::rms_norm;
  else
    flags |= normalization_flags::use_shift;

  if (o.residual) add_residual(*plan, matrix, o);
  const auto kind = backward ? prop_kind::forward_training : prop_kind::forward_inference;
  const dnnl::layer_normalization_forward::primitive_desc forward(plan->engine, kind, matrix, matrix, stats, eps,
                                                                  flags);
  const memory x = plan->at(matrix, o.residual ? o.h : o.x), weight = plan->at(width, o.weight);
  Step step{dnnl::layer_normalization_forward(forward),
            {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, plan->at(matrix, o.y)}, {DNNL_ARG_SCALE, weight}}};
  if (!rms) step.arguments.insert({DNNL_ARG_SHIFT, plan->at(width, o.bias)});
  memory mean, variance;
  if (backward) {
    mean = memory(stats, plan->engine);
    variance = memory(stats, plan->engine);
    if (!rms) step.arguments.insert({DNNL_ARG_MEAN, mean});
    step.arguments.insert({DNNL_ARG_VARIANCE, variance});
  }
  plan->steps.push_back(step);
  if (!backward) return plan;

  const dnnl::layer_normalization_backward::primitive_desc gradient(plan->engine, prop_kind::backward, matrix, matrix,
                                                                    matrix, stats, eps, flags, forward);
  Step back{dnnl::layer_normalization_backward(gradient),
            {{DNNL_ARG_SRC, x},
             {DNNL_ARG_DIFF_DST, plan->at(matrix, o.dy)},
             {DNNL_ARG_SCALE, weight},
             {DNNL_ARG_VARIANCE, variance},
             {DNNL_ARG_DIFF_SRC, plan->at(matrix, o.dx)},
             {DNNL_ARG_DIFF_SCALE, plan->at(width, o.dweight)}}};
  if (!rms) {
    back.arguments.insert({DNNL_ARG_MEAN, mean});
    back.arguments.insert({DNNL_ARG_DIFF_SHIFT, plan->at(width, o.dbias)});
  }
  plan->steps.push_back(back);
  return plan;
}

}  // namespace

extern "C" {

// dtype: 0 f32, 1 bf16, 2 f16 (parameters and their gradients are f32). Null when oneDNN has no implementation.
void* bench_onednn_create(int rms, int backward, int dtype, int64_t rows, int64_t cols, float eps, void** operands) {
  try {
    const Operands o{operands[0], operands[1], operands[2], operands[3], operands[4],
                     operands[5], operands[6], operands[7], operands[8], operands[9]};
    return make_plan(rms, backward, dtype, rows, cols, eps, o).release();
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

void bench_onednn_run(void* plan) {
  auto& p = *static_cast<Plan*>(plan);
  for (const Step& step : p.steps) step.primitive.execute(p.stream, step.arguments);
  p.stream.wait();
}

void bench_onednn_destroy(void* plan) { delete static_cast<Plan*>(plan); }

int bench_onednn_version() {
  const dnnl_version_t* v = dnnl::version();
  return v->major * 10000 + v->minor * 100 + v->patch;
}
}
