# A Debian package, by the target `package`: what is installed, under /usr. What it depends on dpkg-shlibdeps reads from
# the program, so for the release that it is built on; DuckDB's library, which no package has, comes along.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME nmoe)
set(CPACK_PACKAGE_VENDOR nmoe)
set(CPACK_PACKAGE_CONTACT "nmoe maintainers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/NmoePackageTools.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Where libraries lie that are in no package: DuckDB's, and NVIDIA's, which come from where the user has them.
get_filename_component(private_dirs ${NMOE_DUCKDB_LIBRARY} DIRECTORY)
if(NMOE_CUDA)
  list(APPEND private_dirs ${CUDAToolkit_LIBRARY_DIR})
endif()
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${private_dirs})
include(CPack)
