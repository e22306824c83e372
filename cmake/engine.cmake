# The engine: one set of objects, linked into a static and a shared library. The kernels are compiled once per
# instruction set and element type of x; nothing else is compiled with more than the baseline's instructions.

file(GLOB engine_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} src/*.cc src/rows/*.cc src/channels/*.cc)
list(REMOVE_ITEM engine_sources src/rows/kernels.cc src/channels/kernels.cc)

if(NORMKIT_THREADS STREQUAL "openmp")
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  set(thread_library OpenMP::OpenMP_CXX)
elseif(NORMKIT_THREADS STREQUAL "std")
  set(THREADS_PREFER_PTHREAD_FLAG ON)
  find_package(Threads REQUIRED)
  set(thread_library Threads::Threads)
else()
  message(FATAL_ERROR "NORMKIT_THREADS is '${NORMKIT_THREADS}', expected openmp or std")
endif()

# The results are part of the interface: no contraction of a*b+c that the source does not write.
add_library(normkit_flags INTERFACE)
target_compile_features(normkit_flags INTERFACE cxx_std_20)
target_compile_options(normkit_flags INTERFACE -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-psabi)
target_compile_definitions(normkit_flags INTERFACE NORMKIT_VERSION="${PROJECT_VERSION}" NORMKIT_THREADS_${NORMKIT_THREADS}=1)
target_include_directories(normkit_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
if(PROJECT_IS_TOP_LEVEL)
  target_compile_options(normkit_flags INTERFACE -Wall -Wextra)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(normkit_flags INTERFACE -Wno-restrict)  # false alarms on std::string (GCC bug 105651)
  endif()
endif()

set(normkit_objects "")
function(normkit_add_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PRIVATE normkit_flags ${thread_library})
  target_compile_options(${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O3>)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF
                        CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  list(APPEND normkit_objects $<TARGET_OBJECTS:${name}>)
  set(normkit_objects "${normkit_objects}" PARENT_SCOPE)
endfunction()

normkit_add_objects(normkit_engine ${engine_sources})

# The warnings are a fault of GCC 12's own AVX-512 header (GCC bug 105593).
set(flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mbmi2 -mprefer-vector-width=512
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)
set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(flags_baseline $<$<NOT:$<CONFIG:Debug>>:-O2>)  # for machines without FMA; -O3 doubles its compile time
set(flags_neon "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(normkit_targets avx512 avx2 baseline)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(normkit_targets neon)
else()
  set(normkit_targets baseline)
endif()
set(normkit_kernel_objects "")
foreach(simd IN LISTS normkit_targets)
  foreach(x IN ITEMS f32 f64 bf16 f16)
    set(name normkit_kernels_${simd}_${x})
    normkit_add_objects(${name} src/rows/kernels.cc src/channels/kernels.cc)
    target_compile_options(${name} PRIVATE ${flags_${simd}} ${NORMKIT_KERNEL_FLAGS})
    target_compile_definitions(${name} PRIVATE NORMKIT_SIMD=${simd} NORMKIT_X=${x})
    list(APPEND normkit_kernel_objects $<TARGET_OBJECTS:${name}>)
  endforeach()
endforeach()

# normkit_static and normkit_shared, both named libnormkit; normkit::normkit is one of them.
foreach(kind IN ITEMS static shared)
  string(TOUPPER ${kind} KIND)
  add_library(normkit_${kind} ${KIND} ${normkit_objects})
  target_compile_features(normkit_${kind} PUBLIC cxx_std_20)
  target_include_directories(normkit_${kind} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(normkit_${kind} PRIVATE ${thread_library})
  set_target_properties(normkit_${kind} PROPERTIES OUTPUT_NAME normkit EXPORT_NAME normkit LINKER_LANGUAGE CXX)
endforeach()
set_target_properties(normkit_shared PROPERTIES VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

if(BUILD_SHARED_LIBS)
  set(kind shared)
else()
  set(kind static)
endif()
add_library(normkit ALIAS normkit_${kind})
add_library(normkit::normkit ALIAS normkit_${kind})
