// What listens turns away whoever does not prove the job's token, and goes on to serve those who do.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "file_store.h"
#include "harness.h"

namespace {

using test::Outcome;
using test::Rank;

constexpr int kNumGuests = 60;
constexpr int kNonceBytes = 32;

// Where rank 0 listens, as it tells the others through the store.
sockaddr_in AddressOfRank0(const Rank& me, const std::string& name) {
  FileStore store(me.folder);
  uint8_t card[200] = {};
  size_t length = 0;
  const int missing = FileStore::Get(&store, ("comm/" + name + "/tcp/0").c_str(), card, sizeof(card), &length, 10.0);
  CHECK_THAT(missing == 0 && length > 32 && length < sizeof(card), "no card in the store");
  const std::string text(reinterpret_cast<char*>(card) + 32, length - 32);
  const size_t space = text.find(' ');
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(text.substr(space + 1))));
  CHECK_THAT(inet_pton(AF_INET, text.substr(0, space).c_str(), &address.sin_addr) == 1, text);
  return address;
}

// Bytes that look more and less like the first message of a rank, of any length.
std::string Malformed(std::mt19937* random) {
  std::string bytes((*random)() % 300, '\0');
  for (char& byte : bytes) byte = static_cast<char>((*random)());
  const std::string begin("EPLtcp02\1\0\0\0\0\0\0\0", 16);
  const size_t right = (*random)() % (begin.size() + 1);
  bytes.replace(0, std::min(right, bytes.size()), begin.substr(0, std::min(right, bytes.size())));
  return bytes;
}

// Reads until the other end closes; the number of bytes, or -1 when it does not.
int ReadToTheEnd(int guest) {
  const timeval patience = {10, 0};
  setsockopt(guest, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  char answer[1000];
  size_t got = 0;
  ssize_t part;
  while ((part = recv(guest, answer + got, sizeof(answer) - got, 0)) > 0) got += static_cast<size_t>(part);
  return part == 0 || errno == ECONNRESET ? static_cast<int>(got) : -1;
}

TEST(guests_without_the_token_are_turned_away) {
  const test::Ranks ranks = test::Start(2, "tcp", 20.0, false, [](Rank& me) {
    std::vector<int> guests;
    if (me.rank == 1) {
      // All of them come before this rank does, for rank 0 hears whoever came first.
      const sockaddr_in address = AddressOfRank0(me, "guarded");
      std::mt19937 random(20);
      for (int i = 0; i < kNumGuests; ++i) {
        guests.push_back(socket(AF_INET, SOCK_STREAM, 0));
        CHECK_THAT(connect(guests.back(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0,
                   "connect");
        const std::string bytes = Malformed(&random);
        send(guests.back(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (i % 5 == 0) shutdown(guests.back(), SHUT_WR);
      }
    }
    const Outcome outcome = me.Create("guarded");
    CHECK_THAT(outcome.code == 0, outcome.message);
    float value = static_cast<float>(me.rank + 1);
    const epl_segment segment = {&value, &value, 1};
    const Outcome sum = me.Run(test::MakeRequest("sum", EPL_ALL_REDUCE, EPL_FLOAT32, &segment, 1));
    CHECK_THAT(sum.code == EPL_OK && value == 3.0f, sum.message);
    for (int guest : guests) {
      const int got = ReadToTheEnd(guest);
      CHECK_THAT(got >= 0 && got <= kNonceBytes, std::to_string(got) + " bytes came for a guest without the token");
      close(guest);
    }
  });
  test::Finish(ranks, 60.0);
}

}  // namespace
