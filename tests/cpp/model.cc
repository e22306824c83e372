#include "model.h"

#include "model_parts.h"

namespace normkit::test {
namespace {

template <class T>
Moments sweep(const Case& c, const T* h) {
  Moments total;
  if (c.op == Op::layer) {
    for (int64_t at = 0; at < c.cols; at += kBlock) merge(total, block_moments(h + at, std::min(kBlock, c.cols - at)));
  } else {
    total.m2 = row_sum<T>(c.cols, [&](int64_t i, T lane) { return std::fma(h[i], h[i], lane); });
  }
  return total;
}

template <class T>
Stats rescue(const Case& c, const T* h, EpsMode mode) {
  Stats s;
  s.rescued = true;
  const double n = static_cast<double>(c.cols), scale = s.scale = rescue_scale(h, c.cols, c.eps);
  if (c.op == Op::layer) {
    s.m0 = row_sum<double>(c.cols, [&](int64_t i, double lane) { return lane + h[i] * scale; }) / n;
    const double rest =
        row_sum<double>(c.cols, [&](int64_t i, double lane) { return lane + (h[i] * scale - s.m0); }) / n;
    const double mean = s.m0 + rest;
    s.delta = (s.m0 - mean) + rest;
    s.m0 = mean;
  }
  const double squares = row_sum<double>(c.cols, [&](int64_t i, double lane) {
    const double d = (h[i] * scale - s.m0) - s.delta;
    return lane + d * d;
  });
  set_rstd(s, mode, c.op == Op::l2 ? squares : squares / n,
           mode == EpsMode::inside ? c.eps * scale * scale : c.eps * scale);
  if (squares == 0) {
    set_rstd(s, mode, 0, c.eps);
    s.m0 /= scale;
    s.delta /= scale;
    s.scale = 1;
  }
  set_outputs<T>(s);
  return s;
}

template <class T>
Stats statistics(const Case& c, const T* h) {
  const EpsMode mode = c.op == Op::l2 ? EpsMode::clamp : c.eps_mode;
  const Moments m = sweep(c, h);
  const double q = c.op == Op::l2 ? m.m2 : m.m2 / static_cast<double>(c.cols);
  if (needs_rescue<T>(m, q, mode, c.eps)) return rescue(c, h, mode);
  Stats s;
  set_rstd(s, mode, q, c.eps);
  s.m0 = m.origin;
  s.delta = m.shift;
  set_outputs<T>(s);
  return s;
}

template <class T>
T xhat_of(const Case& c, const Stats& s, T h) {
  if (s.wide) return static_cast<T>(((static_cast<double>(h) * s.scale - s.m0) - s.delta) * s.rstd);
  const T rstd = static_cast<T>(s.rstd);
  if (c.op != Op::layer) return h * rstd;
  return std::fma(h - static_cast<T>(s.m0), rstd, static_cast<T>(-(s.delta * s.rstd)));
}

// Operands widened to the compute type.
template <class T>
struct Widened {
  std::vector<T> h, weight;  // weight: with its offset, one per column; empty without a weight
};
template <class T>
Widened<T> widen(const Case& c, const Inputs& in) {
  Widened<T> w;
  for (int64_t i = 0; i < c.rows * c.cols; ++i) {
    T h = static_cast<T>(in.x.get(i));
    if (in.residual) {
      h += static_cast<T>(in.residual.get(i));
      if (c.residual_stats == ResidualStats::rounded) h = static_cast<T>(round_to(c.h_type(), h));
    }
    w.h.push_back(h);
  }
  for (int64_t i = 0; in.weight && i < c.cols; ++i)
    w.weight.push_back(static_cast<T>(in.weight.get(c.single_weight ? 0 : i)) + static_cast<T>(c.weight_offset));
  return w;
}
template <class T>
T rounded_xhat(const Case& c, T xhat) {
  return c.rounding == Rounding::before_weight ? static_cast<T>(round_to(c.x, xhat)) : xhat;
}

template <class T>
Outputs forward_in(const Case& c, const Inputs& in, Outputs out) {
  const Widened<T> w = widen<T>(c, in);
  for (int64_t r = 0; r < c.rows; ++r) {
    const T* h = w.h.data() + r * c.cols;
    const Stats s = statistics(c, h);
    if (out.mean) out.mean.set(r, s.mean_out);
    if (out.rstd) out.rstd.set(r, s.rstd_out);
    for (int64_t i = 0; i < c.cols; ++i) {
      const size_t k = static_cast<size_t>(i);
      T y = rounded_xhat(c, xhat_of(c, s, h[i]));
      const T weight = w.weight.empty() ? T{1} : w.weight[k];
      if (in.bias) {
        y = std::fma(y, weight, static_cast<T>(in.bias.get(c.single_weight ? 0 : i)));
      } else {
        y *= weight;
      }
      out.y.set(r * c.cols + i, y);
      if (out.residual_out) out.residual_out.set(r * c.cols + i, h[i]);
    }
  }
  return out;
}

// dweight, dbias: f32 (f64) sums over blocks of 64 rows, their totals in f64. A single weight then adds its columns.
class ParameterSums {
 public:
  explicit ParameterSums(int64_t cols) : total_(static_cast<size_t>(cols)) {}
  template <class T, class Add>
  void block(const Add& add) {
    for (size_t i = 0; i < total_.size(); ++i) total_[i] += static_cast<double>(add(static_cast<int64_t>(i), T{0}));
  }
  void store(Buffer& out) const {
    if (!out) return;
    if (out.size() == static_cast<int64_t>(total_.size())) {
      for (int64_t i = 0; i < out.size(); ++i) out.set(i, total_[static_cast<size_t>(i)]);
    } else {
      double sum = 0;
      for (double t : total_) sum += t;
      out.set(0, sum);
    }
  }

 private:
  std::vector<double> total_;
};

template <class T>
void backward_row(const Case& c, const Inputs& in, const Widened<T>& w, const Stats& s, const T* xhat, int64_t r,
                  Buffer& dx) {
  const int64_t n = c.cols;
  std::vector<T> g;
  for (int64_t i = 0; i < n; ++i)
    g.push_back(static_cast<T>(in.dy.get(r * n + i)) * (w.weight.empty() ? T{1} : w.weight[static_cast<size_t>(i)]));
  const double sum = row_sum<T>(n, [&](int64_t i, T lane) { return lane + g[static_cast<size_t>(i)]; });
  const double product =
      row_sum<T>(n, [&](int64_t i, T lane) { return std::fma(g[static_cast<size_t>(i)], xhat[i], lane); });
  const double count = static_cast<double>(n);
  const double centre = c.op == Op::layer ? sum / count : 0;
  const double slope = s.derivative * (c.op == Op::l2 ? product : product / count);
  const T rstd = static_cast<T>(s.rstd_out);
  for (int64_t i = 0; i < n; ++i) {
    const T dres = in.dresidual_out ? static_cast<T>(in.dresidual_out.get(r * n + i)) : T{0};
    T t = g[static_cast<size_t>(i)];
    if (s.wide) {
      const double wide = (static_cast<double>(t) - centre) - static_cast<double>(xhat[i]) * slope;
      t = static_cast<T>(wide * s.rstd * s.scale + static_cast<double>(dres));
    } else {
      if (c.op == Op::layer) t -= static_cast<T>(centre);
      t = std::fma(-xhat[i], static_cast<T>(slope), t);
      t = in.dresidual_out ? std::fma(t, rstd, dres) : t * rstd;
    }
    dx.set(r * n + i, t);
  }
}

template <class T>
Outputs backward_in(const Case& c, const Inputs& in, Outputs out) {
  const Widened<T> w = widen<T>(c, in);
  const int64_t n = c.cols;
  std::vector<T> xhat(w.h.size());
  for (int64_t r = 0; r < c.rows; ++r) {
    const Stats s = statistics(c, w.h.data() + r * n);
    for (int64_t i = r * n; i < (r + 1) * n; ++i)
      xhat[static_cast<size_t>(i)] = xhat_of(c, s, w.h[static_cast<size_t>(i)]);
    if (out.dx) backward_row(c, in, w, s, xhat.data() + r * n, r, out.dx);
  }
  ParameterSums dweight(n), dbias(n);
  for (int64_t first = 0; first < c.rows; first += kGradBlock) {
    const int64_t last = std::min(c.rows, first + kGradBlock);
    dweight.block<T>([&](int64_t i, T acc) {
      for (int64_t r = first; r < last; ++r)
        acc =
            std::fma(static_cast<T>(in.dy.get(r * n + i)), rounded_xhat(c, xhat[static_cast<size_t>(r * n + i)]), acc);
      return acc;
    });
    dbias.block<T>([&](int64_t i, T acc) {
      for (int64_t r = first; r < last; ++r) acc += static_cast<T>(in.dy.get(r * n + i));
      return acc;
    });
  }
  dweight.store(out.dweight);
  dbias.store(out.dbias);
  return out;
}

template <class T>
bool rescues_in(const Case& c, const Inputs& in) {
  const Widened<T> w = widen<T>(c, in);
  for (int64_t r = 0; r < c.rows; ++r)
    if (statistics(c, w.h.data() + r * c.cols).rescued) return true;
  return false;
}

}  // namespace

Outputs model_forward(const Case& c, const Inputs& in, const Outputs& like) {
  return c.x == DType::f64 ? forward_in<double>(c, in, like) : forward_in<float>(c, in, like);
}
Outputs model_backward(const Case& c, const Inputs& in, const Outputs& like) {
  const Case b = c.for_backward();
  return c.x == DType::f64 ? backward_in<double>(b, in, like) : backward_in<float>(b, in, like);
}
bool model_rescues(const Case& c, const Inputs& in) {
  return c.x == DType::f64 ? rescues_in<double>(c, in) : rescues_in<float>(c, in);
}

}  // namespace normkit::test
