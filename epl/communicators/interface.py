"""Which native libraries fit this Python code. Others may load, and then fail in ways that say nothing of the cause."""

import hashlib

# EPL_COMM_INTERFACE of csrc/comm/epl_comm.h.
COMM = 5
# Each operation to the digest of what it takes and gives.
OPERATIONS = {
    "EplAllGather": "f6b2e4f4",
    "EplAllReduce": "5bbd271a",
    "EplAllToAll": "3128ccf7",
    "EplBarrier": "76ee38ec",
    "EplBatchShare": "46b34de0",
    "EplBroadcast": "a15d1e54",
    "EplBroadcastReceive": "e12131e4",
    "EplBroadcastSend": "aad1cf35",
    "EplEndOfData": "f77817f4",
    "EplGate": "e453630f",
    "EplLamb": "a790c748",
    "EplLars": "c4dfa97c",
    "EplListShare": "dad9b60e",
    "EplPackStrings": "fa5ed523",
    "EplParts": "11b559a8",
    "EplRecv": "37ce8b49",
    "EplReduce": "39a19c4a",
    "EplReduceScatter": "c5cda9c8",
    "EplResourceLamb": "b4751759",
    "EplResourceLars": "e7b86f9f",
    "EplRouteIds": "62778356",
    "EplRows": "cbef341e",
    "EplSend": "5187b017",
    "EplSparseAllReduce": "44fae0a0",
    "EplTranspose": "d832e703",
    "EplUnpackStrings": "4ad7c2fc",
    "EplWireDecode": "f3b6992e",
    "EplWireEncode": "142b2849",
    "EplWireSum": "0891b1a1",
}


def digest(op_def):
    """A short digest of an OpDef's inputs, outputs and attributes."""

    def of(argument):
        return (argument.name, argument.type, argument.type_attr, argument.number_attr, argument.type_list_attr)

    parts = [op_def.name, [of(each) for each in op_def.input_arg], [of(each) for each in op_def.output_arg]]
    parts.append(sorted((attr.name, attr.type) for attr in op_def.attr))
    return hashlib.sha256(repr(parts).encode("utf-8")).hexdigest()[:8]


def comm_problem(number):
    """What is wrong with a library that says this number of itself, in words; None if it fits."""
    if number == COMM:
        return None
    return "it has interface %s of the communicators, and this epl expects %d" % (number, COMM)


def operations_problem(op_defs):
    """What is wrong with a library that brings these OpDefs; None if it fits."""
    there = {op_def.name: digest(op_def) for op_def in op_defs}
    missing = sorted(set(OPERATIONS) - set(there))
    other = sorted(name for name in there if name in OPERATIONS and there[name] != OPERATIONS[name])
    unknown = sorted(set(there) - set(OPERATIONS))
    found = [
        "%s %s" % (what, ", ".join(names))
        for what, names in (
            ("it lacks the operations", missing),
            ("it has other forms of", other),
            ("it has operations that this epl does not know:", unknown),
        )
        if names
    ]
    return "; ".join(found) or None
