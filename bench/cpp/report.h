// What a run leaves behind: a line per cell on the terminal and one JSON file.
#pragma once

#include <string>
#include <vector>

#include "cases.h"

namespace bench {

// A cell counts as disturbed when other processes took more than this share of the machine.
inline constexpr double kDisturbed = 0.05;

struct Timing {
  double median = 0;  // seconds per call
  double spread = 0;  // half the distance of the quartiles, as a share of the median
};

struct Result {
  Case what;
  int64_t bytes = 0;
  Timing ours, copy;
  std::string copy_name;   // the copy that was faster
  double limit_ratio = 0;  // median over the rounds of copy time / our time
  double error = 0;        // largest error as a share of the tolerance
  double disturbed = 0;    // share of the machine that other processes took meanwhile
};

void print_header();
void print_line(const Result& r);

// Geometric means of the limit ratio by operation, direction, type, threads and place, one line each.
void print_means(const std::vector<Result>& results);

// Throws std::runtime_error when the file cannot be written.
void write_json(const std::string& path, const std::string& set, int repeats, const Machine& machine,
                const std::vector<Result>& results);

}  // namespace bench
