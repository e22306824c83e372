# Installs BUILD into a fresh prefix, builds the consumer against it (HOW static or shared) and runs it; HOW
# subdirectory configures the consumer with the source tree inside it (the same sources, so nothing is built again).
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    string(REPLACE ";" " " command "${ARGN}")
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
set(configure ${CMAKE_COMMAND} -S ${SOURCE}/tests/install/consumer -B ${WORK}/build -G ${GENERATOR}
    -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=Release)
if(HOW STREQUAL "subdirectory")
  run(${configure} -DNORMKIT_SOURCE=${SOURCE})
  return()
endif()

run(${CMAKE_COMMAND} --install ${BUILD} --component cpp --prefix ${WORK}/prefix)
run(${configure} -DCMAKE_PREFIX_PATH=${WORK}/prefix -DKIND=${HOW})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
if(NOT output MATCHES "^normkit [0-9.]+ \\([a-z0-9]+\\): 0.6 1.2\n$")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()

# The archive leaves no libnormkit to load at run time, the shared library does.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${WORK}/build/consumer RESOLVED_DEPENDENCIES_VAR libraries)
string(REGEX MATCH "${WORK}/prefix/[^;]*libnormkit\\.so[^;]*" loaded "${libraries}")
if(HOW STREQUAL "shared" AND NOT loaded OR HOW STREQUAL "static" AND loaded)
  message(FATAL_ERROR "${HOW} consumer loads: ${libraries}")
endif()
