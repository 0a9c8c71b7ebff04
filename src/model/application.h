// One application of a part of a layer: what its forward keeps for its backward. A part itself keeps nothing of a pass,
// so it may be applied several times in one, as by layers that share it.
#pragma once

#include <any>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace nmoe {

// A value of a type that only the part knows. Its tensors are on the activation stack, until backward has popped them.
class Application {
 public:
  Application() = default;  // nothing was applied
  template <class Kept>
  requires(!std::is_same_v<std::remove_cvref_t<Kept>, Application>) explicit Application(Kept&& kept)
      : kept_(std::forward<Kept>(kept)) {}

  // What a forward of the same part made.
  template <class Kept>
  const Kept& as() const {
    const Kept* kept = std::any_cast<Kept>(&kept_);
    NMOE_CHECK(kept != nullptr, "backward of a part without what its forward kept");
    return *kept;
  }

 private:
  std::any kept_;
};

}  // namespace nmoe
