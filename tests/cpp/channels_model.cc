// The channel norms of docs/numerics.md as a scalar program, written from that page and not from the kernels.
#include <functional>

#include "channels.h"
#include "model_parts.h"

namespace normkit::test {
namespace {

constexpr int64_t kPositions = 256, kSumPositions = 64, kProbes = 8;

bool in_columns(const ChannelCase& c) {
  if (c.s == 1) return true;
  // Copied: memory of neither kind; and the channels of a group must follow each other.
  if (c.memory == Memory::odd || (c.memory == Memory::planes_apart && c.op == ChannelOp::group)) return c.last;
  const bool columns = c.memory == Memory::columns || c.memory == Memory::columns_apart;
  // One channel: its positions are neighbours in columns, too.
  return columns && !(c.c == 1 && c.memory == Memory::columns);
}

// One call in the compute type T. Elements are numbered set by set, as the case's buffers are.
template <class T>
class Model {
 public:
  Model(const ChannelCase& c, const ChannelInputs& in)
      : c_(c), in_(in), columns_(in_columns(c)), size_(c.set_size()), samples_(c.op == ChannelOp::batch ? c.n : 1) {}

  ChannelOutputs run(ChannelOutputs out) {
    for (int64_t set = 0; set < c_.sets(); ++set) {
      stats_.push_back(c_.training ? statistics(set) : Stats{});
      const Stats& s = stats_.back();
      var_.push_back(c_.training ? variance_ : 0);
      if (out.mean) out.mean.set(set, s.mean_out);
      if (out.rstd) out.rstd.set(set, s.rstd_out);
    }
    std::vector<double> weights, biases, ones(static_cast<size_t>(c_.c), 1), zeros(ones.size());
    for (int64_t i = 0; i < c_.c; ++i) {
      weights.push_back(in_.weight ? in_.weight.get(i) : 1);
      biases.push_back(in_.bias ? in_.bias.get(i) : 0);
    }
    each_run([&](int64_t set, int64_t channel, int64_t i) {
      const size_t k = static_cast<size_t>(channel);
      out.y.set(i, map(stats_of(set, channel), in_.x.get(i), weights[k], biases[k]));
    });
    move_running(out);
    backward(weights, out);
    return out;
  }

 private:
  T x(int64_t set, int64_t i) const { return static_cast<T>(in_.x.get(set * size_ + i)); }
  int64_t channels_of_set() const { return c_.op == ChannelOp::group ? c_.c / c_.groups : 1; }
  int64_t channel_of(int64_t set, int64_t i) const {
    if (c_.op == ChannelOp::batch) return set;
    return (set * channels_of_set() + i / c_.s) % c_.c;
  }
  template <class F>
  void each_run(const F& f) const {
    for (int64_t set = 0; set < c_.sets(); ++set)
      for (int64_t i = 0; i < size_; ++i) f(set, channel_of(set, i), set * size_ + i);
  }

  // ---- statistics ----
  Moments moments_of_positions(int64_t set, int64_t first, int64_t count) const {
    Moments total;
    for (int64_t at = 0; at < count; at += kPositions) {
      const int64_t m = std::min(kPositions, count - at);
      std::array<T, kProbes> p;
      for (int64_t i = 0; i < kProbes; ++i) p[static_cast<size_t>(i)] = x(set, first + at + std::min(i, m - 1));
      for (size_t half = kProbes / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; ++i) p[i] += p[i + half];
      const T shift = static_cast<T>(round_to(c_.x, p[0] * static_cast<T>(0.125)));
      double s1 = 0, s2 = 0;
      for (int64_t part = 0; part < m; part += kSumPositions) {
        T a = 0, b = 0;
        for (int64_t i = part; i < std::min(m, part + kSumPositions); ++i) {
          const T d = x(set, first + at + i) - shift;
          a += d;
          b = std::fma(d, d, b);
        }
        s1 += static_cast<double>(a);
        s2 += static_cast<double>(b);
      }
      const double delta = s1 / static_cast<double>(m), m2 = s2 - s1 * delta;
      merge(total, {static_cast<double>(m), shift, delta, m2 < 0 ? 0 : m2, s1 * delta});
    }
    return total;
  }
  Moments moments(int64_t set) const {
    Moments total;
    if (columns_) {
      const int64_t each = size_ / channels_of_set();
      for (int64_t i = 0; i < channels_of_set(); ++i) merge(total, moments_of_positions(set, i * each, each));
      return total;
    }
    const int64_t len = size_ / samples_;
    for (int64_t n = 0; n < samples_; ++n) {
      Moments run;
      for (int64_t at = 0; at < len; at += kBlock) {
        std::vector<T> block;
        for (int64_t i = at; i < std::min(len, at + kBlock); ++i) block.push_back(x(set, n * len + i));
        merge(run, block_moments(block.data(), static_cast<int64_t>(block.size())));
      }
      merge(total, run);
    }
    return total;
  }
  // A rescue's sum: add(element, lane) over the set's runs.
  double wide_sum(int64_t set, const std::function<double(double, double)>& add) const {
    std::vector<std::vector<int64_t>> runs;
    if (!columns_) {
      for (int64_t n = 0; n < samples_; ++n) {
        runs.emplace_back();
        for (int64_t i = 0; i < size_ / samples_; ++i) runs.back().push_back(n * (size_ / samples_) + i);
      }
    } else {
      const int64_t positions = size_ / channels_of_set();
      for (int64_t s = 0; s < positions; ++s) {
        runs.emplace_back();
        for (int64_t k = 0; k < channels_of_set(); ++k) runs.back().push_back(k * positions + s);
      }
    }
    double total = 0;
    for (const std::vector<int64_t>& run : runs)
      for (size_t block = 0; block < run.size(); block += kBlock) {
        Lanes<double> lane{};
        for (size_t i = block; i < std::min<size_t>(run.size(), block + kBlock); ++i)
          lane[i % kLanes] = add(static_cast<double>(x(set, run[i])), lane[i % kLanes]);
        total += tree_sum(lane);
      }
    return total;
  }
  Stats rescue(int64_t set) {
    std::vector<T> all;
    for (int64_t i = 0; i < size_; ++i) all.push_back(x(set, i));
    Stats s;
    const double n = static_cast<double>(size_), scale = s.scale = rescue_scale(all.data(), size_, c_.eps);
    s.m0 = wide_sum(set, [&](double h, double lane) { return lane + h * scale; }) / n;
    const double rest = wide_sum(set, [&](double h, double lane) { return lane + (h * scale - s.m0); }) / n;
    const double mean = s.m0 + rest;
    s.delta = (s.m0 - mean) + rest;
    s.m0 = mean;
    const double squares = wide_sum(set, [&](double h, double lane) {
      const double d = (h * scale - s.m0) - s.delta;
      return lane + d * d;
    });
    set_rstd(s, EpsMode::inside, squares / n, c_.eps * scale * scale);
    if (squares == 0) {
      set_rstd(s, EpsMode::inside, 0, c_.eps);
      s.m0 /= scale;
      s.delta /= scale;
      s.scale = 1;
    }
    variance_ = held(squares / n / s.scale / s.scale);
    set_outputs<T>(s);
    return s;
  }
  Stats statistics(int64_t set) {
    const Moments m = moments(set);
    variance_ = m.m2 / static_cast<double>(size_);
    if (needs_rescue<T>(m, variance_, EpsMode::inside, c_.eps)) return rescue(set);
    Stats s;
    set_rstd(s, EpsMode::inside, variance_, c_.eps);
    s.rstd_out = s.rstd;
    set_mean<T>(s, m.origin, m.shift);
    return s;
  }
  // Of the set, or the running ones of the channel.
  Stats stats_of(int64_t set, int64_t channel) const {
    if (c_.training) return stats_[static_cast<size_t>(set)];
    Stats s;
    set_rstd(s, EpsMode::inside, in_.running_var.get(channel), c_.eps);
    set_mean<T>(s, in_.running_mean.get(channel), 0);
    const double rstd = s.rstd, mean = std::abs(s.mean_out);
    if (sizeof(T) == 4 && ((rstd != 0 && rstd < 0x1p-126) || rstd > 0x1p127 || mean > 0x1p126))
      s.m0 = s.mean_out, s.delta = 0;
    return s;
  }
  void move_running(ChannelOutputs& out) const {
    if (!c_.training || !out.running_mean) return;
    const double n = static_cast<double>(size_), factor = size_ > 1 ? n / (n - 1) : 1;
    for (int64_t channel = 0; channel < c_.c; ++channel) {
      double mean = 0, var = 0;
      const int64_t samples = c_.sets() / c_.c;
      for (int64_t k = 0; k < samples; ++k) {
        mean += stats_[static_cast<size_t>(k * c_.c + channel)].mean_out;
        var += var_[static_cast<size_t>(k * c_.c + channel)];
      }
      mean = mean / static_cast<double>(samples) * 1;
      var = var / static_cast<double>(samples) * factor;
      out.running_mean.set(channel, (1 - kMomentum) * in_.running_mean.get(channel) + kMomentum * mean);
      out.running_var.set(channel, (1 - kMomentum) * in_.running_var.get(channel) + kMomentum * var);
    }
  }

  // ---- the map ----
  static bool unfit(double v) { return (v != 0 && std::abs(v) < 0x1p-126) || std::abs(v) > 0x1p127; }
  T map(const Stats& s, double value, double k, double b, double dy = 0, double d = 0, bool with_dy = false) const {
    const double scaled = s.rstd * k, shifted = b - s.delta * scaled;
    const bool wide =
        s.scale != 1 ||
        (sizeof(T) == 4 && (unfit(scaled) || unfit(d) || std::abs(shifted) > 0x1p127 || std::abs(s.m0) > 0x1p126));
    if (wide) {
      const double xhat = ((value * s.scale - s.m0) - s.delta) * s.rstd, v = xhat * k + b;
      return static_cast<T>(with_dy ? dy * d + v : v);
    }
    const T distance = static_cast<T>(value) - static_cast<T>(s.m0);
    const T v = std::fma(distance, static_cast<T>(scaled), static_cast<T>(shifted));
    return with_dy ? std::fma(static_cast<T>(dy), static_cast<T>(d), v) : v;
  }

  // ---- gradients ----
  // The sums of dy (second: of dy * xhat) over the positions of one channel within one set, from element `first` on.
  std::pair<double, double> sums(int64_t set, int64_t channel, int64_t first, int64_t count) const {
    const Stats s = stats_of(set, channel);
    const auto at = [&](int64_t i) { return set * size_ + first + i; };
    const auto dy = [&](int64_t i) { return static_cast<T>(in_.dy.get(at(i))); };
    const auto xhat = [&](int64_t i) { return map(s, in_.x.get(at(i)), 1, 0); };
    if (!columns_)
      return {row_sum<T>(count, [&](int64_t i, T lane) { return lane + dy(i); }),
              row_sum<T>(count, [&](int64_t i, T lane) { return std::fma(dy(i), xhat(i), lane); })};
    double g = 0, gx = 0;
    for (int64_t block = 0; block < count; block += kPositions) {
      double block_g = 0, block_gx = 0;
      const int64_t end = std::min(count, block + kPositions);
      for (int64_t part = block; part < end; part += kSumPositions) {
        T a = 0, b = 0;
        for (int64_t i = part; i < std::min(end, part + kSumPositions); ++i) {
          a += dy(i);
          b = std::fma(dy(i), xhat(i), b);
        }
        block_g += static_cast<double>(a);
        block_gx += static_cast<double>(b);
      }
      g += block_g;
      gx += block_gx;
    }
    return {g, gx};
  }
  void backward(const std::vector<double>& weights, ChannelOutputs& out) const {
    std::vector<double> dweight(weights.size()), dbias(weights.size());
    const int64_t each = channels_of_set(), positions = size_ / each;
    // Running statistics in planes and sets of one sample: the sums of each sample are added in order.
    const bool by_sample = c_.op == ChannelOp::batch && !columns_;
    for (int64_t set = 0; set < c_.sets(); ++set) {
      double c1 = 0, c2 = 0;
      for (int64_t k = 0; k < each; ++k) {
        const int64_t channel = channel_of(set, k * positions);
        double g = 0, gx = 0;
        for (int64_t n = 0; n < (by_sample ? c_.n : 1); ++n) {
          const int64_t len = positions / (by_sample ? c_.n : 1);
          const auto [a, b] = sums(set, channel, k * positions + n * len, len);
          g = n == 0 ? a : g + a;
          gx = n == 0 ? b : gx + b;
        }
        const size_t i = static_cast<size_t>(channel);
        c1 += weights[i] * g;
        c2 += weights[i] * gx;
        dbias[i] += g;
        dweight[i] += gx;
      }
      if (!c_.training) c1 = c2 = 0;
      const double n = static_cast<double>(size_);
      for (int64_t i = 0; i < size_; ++i) {
        const int64_t channel = channel_of(set, i), at = set * size_ + i;
        const Stats s = stats_of(set, channel);
        const double rstd = s.rstd * s.scale, d = rstd * weights[static_cast<size_t>(channel)];
        out.dx.set(at, map(s, in_.x.get(at), -(rstd * (c2 / n)), -(rstd * (c1 / n)), in_.dy.get(at), d, true));
      }
    }
    for (int64_t i = 0; i < c_.c; ++i) {
      out.dweight.set(i, dweight[static_cast<size_t>(i)]);
      out.dbias.set(i, dbias[static_cast<size_t>(i)]);
    }
  }

  const ChannelCase& c_;
  const ChannelInputs& in_;
  bool columns_;
  int64_t size_, samples_;  // samples_: runs of a set, in planes
  double variance_ = 0;     // of the last statistics()
  std::vector<Stats> stats_;
  std::vector<double> var_;
};

}  // namespace

ChannelOutputs channel_model(const ChannelCase& c, const ChannelInputs& in, const ChannelOutputs& like) {
  return c.x == DType::f64 ? Model<double>(c, in).run(like) : Model<float>(c, in).run(like);
}

}  // namespace normkit::test
