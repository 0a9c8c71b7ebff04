#include "rdep/statistics.h"

#include "base/error.h"

namespace nmoe {

std::string_view transfer_name(Transfer transfer) {
  switch (transfer) {
    case Transfer::kDispatch:
      return "dispatch";
    case Transfer::kCombine:
      return "combine";
    case Transfer::kCombineBackward:
      return "combine_backward";
    case Transfer::kDispatchBackward:
      return "dispatch_backward";
  }
  NMOE_CHECK(false, "no transfer {}", static_cast<int>(transfer));
}

}  // namespace nmoe
