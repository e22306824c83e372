# Headers, both libraries and the package for find_package(normkit). Each kind has an export file of its own; both define
# normkit::normkit, and the package config includes the one that is wanted.

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/normkit)
install(DIRECTORY include/normkit DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp)
foreach(kind IN ITEMS static shared)
  install(TARGETS normkit_${kind} EXPORT normkit-${kind}-targets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp NAMELINK_COMPONENT cpp
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
  install(EXPORT normkit-${kind}-targets NAMESPACE normkit:: DESTINATION ${package_dir} COMPONENT cpp)
endforeach()

configure_package_config_file(cmake/normkit-config.cmake.in ${PROJECT_BINARY_DIR}/normkit-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/normkit-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/normkit-config.cmake ${PROJECT_BINARY_DIR}/normkit-config-version.cmake
        DESTINATION ${package_dir} COMPONENT cpp)
