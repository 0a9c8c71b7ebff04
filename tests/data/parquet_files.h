// Parquet files for the data tests.
#pragma once

#include <duckdb.h>
#include <gtest/gtest.h>

#include <string>

namespace nmoe::test {

// Runs SQL that writes files.
inline void run_sql(const std::string& query) {
  duckdb_config config = nullptr;
  duckdb_database database = nullptr;
  duckdb_connection connection = nullptr;
  duckdb_result result;
  ASSERT_EQ(duckdb_create_config(&config), DuckDBSuccess);
  ASSERT_EQ(duckdb_set_config(config, "threads", "1"), DuckDBSuccess);  // ThreadSanitizer misreads DuckDB's own
  ASSERT_EQ(duckdb_open_ext(nullptr, &database, config, nullptr), DuckDBSuccess);
  duckdb_destroy_config(&config);
  ASSERT_EQ(duckdb_connect(database, &connection), DuckDBSuccess);
  EXPECT_EQ(duckdb_query(connection, query.c_str(), &result), DuckDBSuccess) << duckdb_result_error(&result);
  duckdb_destroy_result(&result);
  duckdb_disconnect(&connection);
  duckdb_close(&database);
}

}  // namespace nmoe::test
