// Choice of the back end.
#ifndef EPL_COMM_BACKENDS_H_
#define EPL_COMM_BACKENDS_H_

#include <memory>

#include "communicator.h"
#include "rendezvous.h"

namespace epl {

bool HasGloo();

// The back end named by options.backend; epl_comm.h says what "auto" and its variants take.
Status CreateCommunicator(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result);

// What "auto" takes between hosts.
Status CreateTcpCommunicator(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result);

// Defined with the Gloo back end, or without it as an error that says what to install.
Status CreateGlooCommunicator(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result);

}  // namespace epl
#endif  // EPL_COMM_BACKENDS_H_
