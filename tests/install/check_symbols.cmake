# Weak functions of the kernel objects: the linker keeps any one of the copies that it finds, so none may have a name
# that another instruction set's object, or plain code, can share.
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} --defined-only -C ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* W [^\n]*" weak "${symbols}")
  foreach(symbol IN LISTS weak)
    string(APPEND found "  ${object}: ${symbol}\n")
  endforeach()
endforeach()
if(found)
  message(FATAL_ERROR "weak symbols in kernel objects:\n${found}")
endif()
