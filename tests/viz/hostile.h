// What others may call things, to run in a page or to steer a terminal.
#pragma once

#include <array>

namespace nmoe::test {

inline constexpr std::array kHostileNames = {
    "<img src=x onerror='window.hostile=1'>",
    "\"><script>window.hostile=1</script>",
    "'><svg/onload=window.hostile=1>",
    "</title></style></script><iframe srcdoc='<script>parent.hostile=1</script>'>",
    "<a href='javascript:window.hostile=1' autofocus onfocus=window.hostile=1>x</a>",
    "{{constructor.constructor('window.hostile=1')()}}",
    "${window.hostile=1}",
    "&lt;img src=x onerror=window.hostile=1&gt;",
    "\x1b]0;x\x07\x1b[2J\x9b\x31m\xe2\x80\xae",
    "=HYPERLINK(\"http://evil.example\",\"x\")",
};

}  // namespace nmoe::test
