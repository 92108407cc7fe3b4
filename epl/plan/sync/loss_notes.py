"""What people are told of losses that several copies of a model do not compute as one device does."""

from epl.plan.facts.row_states import COMPARED, MEAN, OTHER, RATIO, SAME, SUM, UNKNOWN

_KEY = "communication.gradients_reduce_method"
_WHOLE = (
    "so that together they compute something else than one device does with the whole batch. Use epl.replicate(k) of a "
    "batch whose size the graph knows, or epl.split, for the whole batch."
)


def loss_notes(losses, method):
    """Sentences about Losses (epl.plan.sync.loss_terms), each at most once.

    Args:
      losses: those of a program that several copies of a model, or micro-batches, compute.
      method: communication.gradients_reduce_method.
    """
    notes = []
    for loss in losses:
        first = {}
        for term in loss.terms:
            first.setdefault(term.kind, term)
        if COMPARED in first:
            notes.append(
                "the loss '%s' compares the rows of a batch with one another ('%s'): each copy of the model, and each "
                "micro-batch, sees its own rows only, %s" % (loss.tensor, first[COMPARED].node, _WHOLE)
            )
        if OTHER in first:
            notes.append(
                "the loss '%s' is made of a sum or a mean over all rows in another way than by additions and constant "
                "factors ('%s'): each copy of the model, and each micro-batch, makes it of its own rows, %s"
                % (loss.tensor, first[OTHER].node, _WHOLE)
            )
        if RATIO in first and not loss.is_weighed:
            notes.append(
                "the loss '%s' is a sum over the rows that is divided by what the data says ('%s'): each copy of the "
                "model, and each micro-batch, divides by what is in its own rows, and the mean of the quotients is not "
                "quite that of the whole batch." % (loss.tensor, first[RATIO].by or first[RATIO].node)
            )
        if loss.uneven:
            notes.append(
                "the loss '%s' is a mean over the rows ('%s') of batches of which some may have fewer rows than "
                "others, such as the last one of a data set: each copy of the model, and each micro-batch, counts the "
                "same, and the mean of their means is then not quite that of the whole batch. Have repeat() before "
                "batch(…), or drop_remainder=True." % (loss.tensor, loss.uneven[0].node)
            )
        notes.extend(_of_sums(loss, first, method))
    return list(dict.fromkeys(notes))


def loss_guesses(losses):
    """Sentences about those of which the rules cannot tell how they are made of rows, each at most once."""
    notes = []
    for loss in losses:
        unknown = next((term for term in loss.terms if term.kind == UNKNOWN), None)
        if unknown is not None:
            notes.append(
                "EPL cannot tell how the loss '%s' is made of the rows of a batch (from '%s' on), and takes it for a "
                "mean over them. `epl-launch --verify 3` compares its gradients with those of one device."
                % (loss.tensor, unknown.node or unknown.tensor)
            )
    return list(dict.fromkeys(notes))


def _of_sums(loss, first, method):
    others = [first[kind] for kind in (MEAN, RATIO, SAME) if kind in first]
    if SUM not in first or method == "auto" or method == "sum" and not others:
        return []
    if not others:
        return [
            "the loss '%s' is a sum over the rows ('%s'), of which the mean over copies of the model and micro-batches "
            'is a part only. Set %s to "auto", or to "sum".' % (loss.tensor, first[SUM].node, _KEY)
        ]
    return [
        "the loss '%s' is a sum over the rows ('%s') plus a term that is not ('%s'): with %s=\"mean\" the sum counts "
        'for less than on one device, with "sum" the other term for more. Set it to "auto".'
        % (loss.tensor, first[SUM].node, others[0].node, _KEY)
    ]
