// Exact expectations of what a user is told.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace nmoe {

// Calls `fn`, which must throw a usage error with exactly these texts.
template <class Fn>
void expect_usage_error(Fn fn, const std::string& what, const std::string& remedy) {
  try {
    fn();
    ADD_FAILURE() << "no error; expected: " << what;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.what(), what);
    EXPECT_EQ(error.remedy(), remedy);
  }
}

}  // namespace nmoe
