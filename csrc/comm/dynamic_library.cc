#include "dynamic_library.h"

#include <dlfcn.h>

namespace epl {

Status DynamicLibrary::Open(const char* what, const std::vector<std::string>& names, const char* remedy,
                            DynamicLibrary* result) {
  std::string problems;
  for (const std::string& name : names) {
    // RTLD_LOCAL: another copy that the process uses must not be mixed with this one.
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) {
      result->handle_ = handle;
      result->name_ = name;
      return Status();
    }
    const char* why = dlerror();
    problems += Format("%s%s", problems.empty() ? "" : "; ", why == nullptr ? name.c_str() : why);
  }
  return Status(EPL_INVALID, Format("%s cannot be loaded (%s). %s", what, problems.c_str(), remedy));
}

void* DynamicLibrary::Find(const char* function) const { return dlsym(handle_, function); }

}  // namespace epl
