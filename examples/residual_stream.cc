// The residual stream of a Pre-LN transformer, kept with one call per layer.
//
// A Pre-LN model carries a stream h. Each layer normalizes it, computes an update from the result and adds that to it:
//
//   y = layer_norm(h);  update = sublayer(y);  h = h + update
//
// "Add the last update, then normalize" is one call with `residual`: it reads update and h, writes h and y, and touches
// nothing twice. Here the stream is f32 and what goes in and out of the sublayers is bf16, as in training.
//
// The program runs the layers with that one call and again in separate steps, compares the bits, compares y with f64, and
// returns 1 if anything is wrong.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "normkit/normkit.h"

namespace {

using normkit::bf16;

constexpr int64_t kTokens = 256, kWidth = 768;
constexpr int kLayers = 12;
constexpr double kEps = 1e-5;

// The same numbers on every machine: bits of a counter, spread over [-1, 1).
float noise(uint32_t i) {
  i = (i ^ (i >> 16)) * 0x7feb352du;
  i = (i ^ (i >> 15)) * 0x846ca68bu;
  return static_cast<float>(static_cast<int32_t>(i ^ (i >> 16))) * 0x1p-31f;
}

struct Layer {
  std::vector<float> weight, bias;
  explicit Layer(int index) : weight(kWidth), bias(kWidth) {
    for (int64_t j = 0; j < kWidth; ++j) {
      const auto seed = static_cast<uint32_t>(index * kWidth + j);
      weight[j] = 1 + 0.2f * noise(seed);
      bias[j] = 0.1f * noise(seed + 0x10000);
    }
  }
};

// Stands for attention or the MLP, which are not our subject: gated pairs of features of the same token.
void sublayer(const std::vector<bf16>& y, int index, std::vector<bf16>& update) {
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t j = 0; j < kWidth; ++j) {
      const float a = y[t * kWidth + j], b = y[t * kWidth + (j + 7 * index + 1) % kWidth];
      update[t * kWidth + j] = bf16(a * b / (1 + std::fabs(a)));
    }
}

struct Stream {
  std::vector<float> h = std::vector<float>(kTokens * kWidth);     // the stream
  std::vector<bf16> update = std::vector<bf16>(kTokens * kWidth);  // what the next layer adds to it; at first 0
  std::vector<bf16> y = std::vector<bf16>(kTokens * kWidth);       // h, normalized
  Stream() {
    for (size_t i = 0; i < h.size(); ++i) h[i] = noise(static_cast<uint32_t>(i));
  }
};

// h += update and y = layer_norm(h): one call. residual_out is the residual itself, so the stream stays in its place.
void add_and_norm(Stream& s, const Layer& layer, int threads) {
  normkit::layer_norm({.x = {s.update.data(), {kTokens, kWidth}},
                       .weight = layer.weight,
                       .bias = layer.bias,
                       .residual = {s.h.data(), {kTokens, kWidth}},
                       .y = {s.y.data(), {kTokens, kWidth}},
                       .residual_out = {s.h.data(), {kTokens, kWidth}},
                       .eps = kEps},
                      {.threads = threads});
}

// The same in three steps, each of which reads and writes everything once more.
void add_then_norm(Stream& s, const Layer& layer) {
  std::vector<float> y(s.h.size());
  for (size_t i = 0; i < s.h.size(); ++i) s.h[i] += s.update[i];
  normkit::layer_norm({.x = {s.h.data(), {kTokens, kWidth}},
                       .weight = layer.weight,
                       .bias = layer.bias,
                       .y = {y.data(), {kTokens, kWidth}},
                       .eps = kEps});
  for (size_t i = 0; i < y.size(); ++i) s.y[i] = bf16(y[i]);
}

bool same_bits(const Stream& a, const Stream& b) {
  const auto bits = [](bf16 u, bf16 v) { return u.bits == v.bits; };
  return std::equal(a.h.begin(), a.h.end(), b.h.begin()) && std::equal(a.y.begin(), a.y.end(), b.y.begin(), bits);
}

// The largest error of y as a part of what is allowed: half a bf16 step of the exact value, plus the f32 arithmetic.
double error_of_bound(const Stream& s, const Layer& layer) {
  double worst = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    const float* h = &s.h[t * kWidth];
    double mean = 0, var = 0;
    for (int64_t j = 0; j < kWidth; ++j) mean += h[j] / double{kWidth};
    for (int64_t j = 0; j < kWidth; ++j) var += (h[j] - mean) * (h[j] - mean) / double{kWidth};
    for (int64_t j = 0; j < kWidth; ++j) {
      const double w = layer.weight[j], b = layer.bias[j], xhat = (h[j] - mean) / std::sqrt(var + kEps);
      const double exact = xhat * w + b, arithmetic = std::fabs(w) * (std::fabs(xhat) + 1) + std::fabs(b);
      const double bound = 0x1p-8 * std::fabs(exact) + 16 * 0x1p-24 * arithmetic;
      worst = std::max(worst, std::fabs(s.y[t * kWidth + j] - exact) / bound);
    }
  }
  return worst;
}

template <class Values>
double rms(const Values& values) {
  double sum = 0;
  for (const float v : values) sum += double{v} * v;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

}  // namespace

int main() {
  std::printf("Pre-LN residual stream: %d layers, %d tokens of width %d; stream f32, sublayers bf16 (%s)\n\n", kLayers,
              int{kTokens}, int{kWidth}, normkit::target().c_str());
  std::printf("layer   rms of the stream   rms of y   largest error of y / bound\n");
  Stream fused, threaded, separate;
  bool same = true, exact = true;
  for (int l = 0; l < kLayers; ++l) {
    const Layer layer(l);
    add_and_norm(fused, layer, 1);
    add_and_norm(threaded, layer, 4);
    add_then_norm(separate, layer);
    same = same && same_bits(fused, separate) && same_bits(fused, threaded);
    const double error = error_of_bound(fused, layer);
    exact = exact && error <= 1;
    if (l == 0 || l % 4 == 3) std::printf("%5d %19.3f %10.3f %28.2f\n", l + 1, rms(fused.h), rms(fused.y), error);
    for (Stream* s : {&fused, &threaded, &separate}) sublayer(s->y, l, s->update);
  }
  std::printf("\nThe stream grows from layer to layer; what the sublayers see does not.\n");
  std::printf("One call per layer; the same on 4 threads; add, norm and rounding apart: %s\n",
              same ? "the same bits" : "DIFFERENT BITS");
  std::printf("Error against f64: %s\n",
              exact ? "inside the bound (half a bf16 step and f32 arithmetic) in every layer" : "OUT OF BOUNDS");
  return same && exact ? 0 : 1;
}
