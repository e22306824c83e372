// The C structs of DLPack 1.3 (https://dmlc.github.io/dlpack/latest/c_api.html) that cross the border between array
// libraries: the layout is a public ABI. Only what normkit reads is declared in full.
#pragma once

#include <cstdint>

namespace normkit::python::dlpack {

enum DeviceType : int32_t { kCPU = 1, kCUDAHost = 3, kROCMHost = 11 };  // the devices whose memory a CPU can read
enum TypeCode : uint8_t { kFloat = 2, kBfloat = 4 };
enum Flags : uint64_t { kReadOnly = 1, kIsCopied = 2 };

struct Version {
  uint32_t major, minor;
};
inline constexpr Version kVersion{1, 3};

struct Device {
  int32_t type, id;
};

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null (before 1.2): contiguous
  uint64_t byte_offset;
};

// What a capsule named "dltensor" holds (before version 1).
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

// What a capsule named "dltensor_versioned" holds.
struct ManagedTensorVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

// The table of C functions in the capsule `type(x).__dlpack_c_exchange_api__`, named "dlpack_exchange_api". They return
// 0, or -1 with a Python error set (the allocator reports through set_error).
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;  // the table of an older version, or null
  int (*allocate)(Tensor* prototype, ManagedTensorVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensorVersioned** out);
  int (*object_from_managed)(ManagedTensorVersioned* stolen, void** out_object);
  int (*borrow)(void* object, Tensor* out);  // may be null; the memory stays the object's
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out_stream);
};

}  // namespace normkit::python::dlpack
