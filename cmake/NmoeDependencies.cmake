# Outside libraries. Each has one target here; src/ names only these targets.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
pkg_check_modules(TOMLPP REQUIRED IMPORTED_TARGET tomlplusplus)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(SIMDJSON REQUIRED IMPORTED_TARGET simdjson)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
find_package(ZLIB REQUIRED)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(LIBEDIT REQUIRED IMPORTED_TARGET libedit)
# Beast, which is headers alone.
find_package(Boost 1.74 REQUIRED)

# DuckDB is no Debian package: scripts/setup.sh puts it here.
set(NMOE_DEPS_DIR ${CMAKE_SOURCE_DIR}/third_party CACHE PATH "Where scripts/setup.sh put DuckDB")
find_path(NMOE_DUCKDB_INCLUDE duckdb.h PATHS ${NMOE_DEPS_DIR}/duckdb/include NO_DEFAULT_PATH)
find_library(NMOE_DUCKDB_LIBRARY duckdb PATHS ${NMOE_DEPS_DIR}/duckdb/lib NO_DEFAULT_PATH)
if(NOT NMOE_DUCKDB_INCLUDE OR NOT NMOE_DUCKDB_LIBRARY)
  message(FATAL_ERROR "DuckDB not found under ${NMOE_DEPS_DIR}/duckdb: run scripts/setup.sh")
endif()
add_library(nmoe_duckdb INTERFACE)
target_include_directories(nmoe_duckdb SYSTEM INTERFACE ${NMOE_DUCKDB_INCLUDE})
target_link_libraries(nmoe_duckdb INTERFACE ${NMOE_DUCKDB_LIBRARY})

# oneDNN ships no pkg-config file on Debian 12; its CMake package is enough.
find_package(dnnl REQUIRED)
# oneDNN's threads are OpenMP's; nmoe tells it to use one a call (ops/cpu/blas.cpp).
find_package(OpenMP REQUIRED COMPONENTS CXX)
