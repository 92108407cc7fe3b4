// Which interface of the communicators the operations were compiled for; Python asks before it runs any of them.
#include "epl_comm.h"

extern "C" EPL_EXPORT int epl_ops_interface(void) { return EPL_COMM_INTERFACE; }
