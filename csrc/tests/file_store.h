// A store of epl_comm.h in a folder: one file per key, written beside and renamed, so that readers see whole values.
#ifndef EPL_TESTS_FILE_STORE_H_
#define EPL_TESTS_FILE_STORE_H_

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "epl_comm.h"

struct FileStore {
  std::string folder;
  epl_store store;

  explicit FileStore(const std::string& folder_in) : folder(folder_in), store{this, &Set, &Get, nullptr} {}

  std::string Path(const char* key) const {
    std::string name = key;
    for (char& c : name) c = c == '/' ? '_' : c;
    return folder + "/" + name;
  }

  static int Set(void* context, const char* key, const uint8_t* value, size_t length) {
    const std::string path = static_cast<FileStore*>(context)->Path(key);
    const std::string beside = path + ".new";
    std::ofstream file(beside, std::ios::binary);
    file.write(reinterpret_cast<const char*>(value), static_cast<std::streamsize>(length));
    file.close();
    return file.good() && std::rename(beside.c_str(), path.c_str()) == 0 ? 0 : 1;
  }

  static int Get(void* context, const char* key, uint8_t* value, size_t capacity, size_t* length, double timeout_s) {
    const std::string path = static_cast<FileStore*>(context)->Path(key);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
    do {
      std::ifstream file(path, std::ios::binary);
      if (file.good()) {
        const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        *length = text.size();
        std::memcpy(value, text.data(), text.size() < capacity ? text.size() : capacity);
        return 0;
      }
      usleep(1000);
    } while (std::chrono::steady_clock::now() < end);
    return 1;
  }
};

#endif  // EPL_TESTS_FILE_STORE_H_
