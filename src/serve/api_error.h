// Errors as clients of OpenAI's API expect them.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

namespace nmoe {

// Answered as {"error": {"message", "type", "param", "code"}} with the HTTP status.
class ApiError : public std::runtime_error {
 public:
  // `param` names the field of the request that is wrong, `code` what is wrong with it; "" is null.
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "");

  int status() const { return status_; }
  std::string json() const;

 private:
  int status_;
  std::string param_;
  std::string code_;
};

}  // namespace nmoe
