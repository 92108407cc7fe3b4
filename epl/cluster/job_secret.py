"""The secret of a user whose workers were started without EPL_JOB_TOKEN: a file that only the user can read."""

import hashlib
import hmac
import os
import secrets
import stat

from epl.errors import ClusterError

_ADVICE = (
    "Set EPL_JOB_TOKEN to the same secret text for all workers, such as what `openssl rand -hex 16` prints; epl-launch "
    "does so on one machine."
)

_SHORTEST = 16  # bytes


def path(environ):
    """Where the secret is: job_secret in the folder `epl` of the user's configuration."""
    folder = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "epl", "job_secret")


def token_of(parts, environ=None):
    """A token for a job, from the user's secret and from what all workers know of the job.

    The secret is made at its first use. Workers of one machine have it in common, and so have those of machines that
    share home folders; others need EPL_JOB_TOKEN, and are refused by worker 0 without it.

    Args:
      parts: texts, such as the addresses of the workers.
      environ: mapping of variables; default os.environ.

    Raises:
      ClusterError: the file cannot be made or read, or others can read it.
    """
    file = path(os.environ if environ is None else environ)
    try:
        secret = _read(file) or _make(file)
    except OSError as error:
        raise ClusterError(
            "the workers of this job have no token, and this user's secret for such jobs, %s, cannot be used: %s. %s"
            % (file, error.strerror or error, _ADVICE)
        ) from error
    return hmac.new(secret, "\n".join(("epl job",) + tuple(parts)).encode("utf-8"), hashlib.sha256).hexdigest()


def _read(file):
    """The secret, or None when there is none yet."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(stream.fileno())
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ClusterError(
                "%s holds the secret of this user's jobs, but others can read or own it. Remove it, and a new one is "
                "made. %s" % (file, _ADVICE)
            )
        secret = stream.read().strip()
    if len(secret) < _SHORTEST:
        raise ClusterError(
            "%s holds the secret of this user's jobs, but has %d bytes; at least %d are wanted, as others could guess "
            "less. Remove it, and a new one is made. %s" % (file, len(secret), _SHORTEST, _ADVICE)
        )
    return secret


def _make(file):
    os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
    temporary = "%s.%d.%s" % (file, os.getpid(), secrets.token_hex(4))
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(secrets.token_hex(32).encode("ascii"))
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(temporary, file)  # fails where another worker was first
        except FileExistsError:
            pass  # that worker's counts, for all of them
    finally:
        os.unlink(temporary)
    return _read(file)
