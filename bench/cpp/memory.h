// Memory for measurements: page aligned, on huge pages where the system gives them, touched once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bench {

class Buffer {
 public:
  explicit Buffer(int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_;
  int64_t bytes_;
  int64_t mapped_;
};

}  // namespace bench
