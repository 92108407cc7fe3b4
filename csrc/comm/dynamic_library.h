// A shared library that is looked for when it is first needed, and not when this one is loaded.
#ifndef EPL_COMM_DYNAMIC_LIBRARY_H_
#define EPL_COMM_DYNAMIC_LIBRARY_H_

#include <string>
#include <vector>

#include "status.h"

namespace epl {

class DynamicLibrary {
 public:
  // Loads the first of `names` (paths, or names that the system's loader knows) that can be loaded. `what` begins the
  // message of an error, `remedy` ends it. The library stays loaded until the process ends: code of it may run as long.
  static Status Open(const char* what, const std::vector<std::string>& names, const char* remedy,
                     DynamicLibrary* result);

  // NULL if the library has no such function.
  void* Find(const char* function) const;

  const std::string& name() const { return name_; }

 private:
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace epl
#endif  // EPL_COMM_DYNAMIC_LIBRARY_H_
