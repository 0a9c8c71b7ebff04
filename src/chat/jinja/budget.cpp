#include "chat/jinja/budget.h"

namespace nmoe::jinja {
namespace {

thread_local int64_t* units_left = nullptr;

}  // namespace

Budget::Budget(int64_t units) : before_(units_left), left_(units) { units_left = &left_; }
Budget::~Budget() { units_left = before_; }

void charge(int64_t units) {
  if (units_left == nullptr) return;
  *units_left -= units;
  if (*units_left < 0) fail("the template does not end, or makes too much of what it is given");
}

}  // namespace nmoe::jinja
