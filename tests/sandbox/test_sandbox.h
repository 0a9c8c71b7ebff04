// A sandbox for tests.
#pragma once

#include "sandbox/sandbox.h"

namespace nmoe::test {

// One for all; slower machines than a user's run them.
inline const Sandbox& sandbox() {
  static const Sandbox instance({.seconds = 30});
  return instance;
}

}  // namespace nmoe::test
