#include "train/cuda/api_calls.h"

#include <utility>

#include "base/error.h"

namespace nmoe::test {
namespace {

void check(CUptiResult status, const char* call) {
  const char* text = "";
  cuptiGetResultString(status, &text);
  NMOE_CHECK(status == CUPTI_SUCCESS, "{}: {}", call, text);
}

}  // namespace

ApiCalls::ApiCalls() {
  check(cuptiSubscribe(&subscriber_, on_call, this), "cuptiSubscribe");
  check(cuptiEnableDomain(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API), "cuptiEnableDomain");
}

ApiCalls::~ApiCalls() { cuptiUnsubscribe(subscriber_); }

CallCounts ApiCalls::take() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(counts_, {});
}

void CUPTIAPI ApiCalls::on_call(void* self, CUpti_CallbackDomain, CUpti_CallbackId, const void* data) {
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  if (call.callbackSite != CUPTI_API_ENTER) return;
  auto& calls = *static_cast<ApiCalls*>(self);
  const std::scoped_lock lock(calls.mutex_);
  ++calls.counts_[call.functionName];
}

int64_t count_of(const CallCounts& counts, const std::string& prefix) {
  int64_t total = 0;
  for (auto call = counts.lower_bound(prefix); call != counts.end() && call->first.starts_with(prefix); ++call) {
    total += call->second;
  }
  return total;
}

}  // namespace nmoe::test
