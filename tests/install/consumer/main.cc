// The README's C++ example as a project of its own.
#include <normkit/normkit.h>

#include <cstdio>
#include <vector>

int main() {
  // Mean square 12.5, so y = x / 3.5355... * weight.
  std::vector<float> x = {3, 4}, weight = {0.70710678f, 1.0606602f}, y(2);
  normkit::rms_norm({.x = x, .weight = weight, .y = y, .eps = 1e-6});
  std::printf("normkit %s (%s): %.3g %.3g\n", normkit::version(), normkit::target().c_str(), y[0], y[1]);
}
