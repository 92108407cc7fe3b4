// A result that carries one of the codes of epl_comm.h and a sentence for the user.
#ifndef EPL_COMM_STATUS_H_
#define EPL_COMM_STATUS_H_

#include <string>
#include <utility>

#include "epl_comm.h"

namespace epl {

struct Status {
  int code = EPL_OK;
  std::string message;

  Status() = default;
  Status(int code_in, std::string message_in) : code(code_in), message(std::move(message_in)) {}
  bool ok() const { return code == EPL_OK; }
};

// printf into a std::string.
__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...);

}  // namespace epl
#endif  // EPL_COMM_STATUS_H_
