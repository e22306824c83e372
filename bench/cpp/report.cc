#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <stdexcept>
#include <thread>

#include "normkit/normkit.h"

namespace bench {
namespace {

std::string first_line_of(const std::string& command) {
  std::string line;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char text[256];
    if (std::fgets(text, sizeof text, pipe)) line = text;
    pclose(pipe);
  }
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  return line;
}

std::string revision() {
  const std::string line =
      first_line_of("git -C '" NORMKIT_BENCH_SOURCE_DIR "' describe --always --dirty --abbrev=12 2>/dev/null");
  return line.empty() ? "unknown" : line;
}

std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

// The name without its shape, "op/direction/dtype/ROWSxCOLS/threads/place" -> "op/direction/dtype/threads/place".
std::string group_of(const Case& c) {
  const std::string name = c.name();
  size_t shape = 0;
  for (int slash = 0; slash < 3; ++slash) shape = name.find('/', shape) + 1;
  return name.substr(0, shape) + name.substr(name.find('/', shape) + 1);
}

}  // namespace

void print_header() {
  std::printf("%-58s %11s %7s %8s %8s %7s %6s\n", "case", "ours", "GB/s", "copy", "limit", "spread", "error");
}

void print_line(const Result& r) {
  std::printf("%-58s %8.3f us %7.1f %8s %8.2f %6.1f%% %6.2f%s%s\n", r.what.name().c_str(), r.ours.median * 1e6,
              static_cast<double>(r.bytes) / r.ours.median * 1e-9, r.copy_name.c_str(), r.limit_ratio,
              r.ours.spread * 100, r.error, r.error <= 1 ? "" : "  WRONG ANSWER",
              r.disturbed > kDisturbed ? "  disturbed" : "");
  std::fflush(stdout);
}

void print_means(const std::vector<Result>& results) {
  std::map<std::string, std::pair<double, int>> groups;
  for (const Result& r : results) {
    auto& [logs, n] = groups[group_of(r.what)];
    logs += std::log(r.limit_ratio);
    ++n;
  }
  if (groups.size() == results.size()) return;  // nothing to average
  std::printf("\ngeometric mean of the limit ratio\n");
  for (const auto& [name, group] : groups)
    std::printf("%-58s %6.2f  (%d cells)\n", name.c_str(), std::exp(group.first / group.second), group.second);
}

void write_json(const std::string& path, const std::string& set, int repeats, const Machine& machine,
                const std::vector<Result>& results) {
  std::ofstream out(path);
  char now[32];
  const std::time_t t = std::time(nullptr);
  std::strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&t));
  out << "{\"program\": \"normkit_bench\", \"set\": " << quoted(set) << ", \"time\": \"" << now
      << "\", \"revision\": " << quoted(revision()) << ", \"version\": " << quoted(normkit::version())
      << ", \"repeats\": " << repeats << ",\n \"machine\": {\"cpu\": " << quoted(cpu_model())
      << ", \"cores\": " << std::thread::hardware_concurrency() << ", \"target\": " << quoted(normkit::target())
      << ", \"l2_bytes\": " << machine.l2_bytes << ", \"cache_bytes\": " << machine.cache_bytes
      << ", \"compiler\": " << quoted(__VERSION__) << "},\n \"cells\": [";
  const char* comma = "\n";
  for (const Result& r : results) {
    out << comma << "  {\"case\": " << quoted(r.what.name())
        << ", \"op\": " << quoted(r.what.op == Op::rms_norm ? "rms_norm" : "layer_norm")
        << ", \"direction\": " << quoted(r.what.direction == Direction::forward ? "forward" : "backward")
        << ", \"dtype\": " << quoted(dtype_name(r.what.dtype)) << ", \"rows\": " << r.what.rows
        << ", \"cols\": " << r.what.cols << ", \"residual\": " << (r.what.residual ? "true" : "false")
        << ", \"threads\": " << r.what.threads << ", \"place\": " << quoted(r.what.place) << ", \"bytes\": " << r.bytes
        << ", \"seconds\": " << r.ours.median << ", \"spread\": " << r.ours.spread
        << ", \"copy_seconds\": " << r.copy.median << ", \"copy_spread\": " << r.copy.spread
        << ", \"copy\": " << quoted(r.copy_name) << ", \"limit_ratio\": " << r.limit_ratio
        << ", \"disturbed\": " << r.disturbed << ", \"correct\": " << (r.error <= 1 ? "true" : "false")
        << ", \"error\": " << std::min(r.error, 1e300) << "}";
    comma = ",\n";
  }
  out << "\n]}\n";
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace bench
