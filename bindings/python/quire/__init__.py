"""quire in Python: the C interface of libquire (include/quire), object by object, through ctypes.

    import quire

    layout = quire.Layout(format="bf16", target_layers=61, ranks=4, pages=4096, numerics_id="my-kernels-1")
    cache = quire.Cache(layout)
    request = cache.reserve(prompt, headroom=512)
    first = request.tokens          # positions below need no computing
    pages = request.pages()         # by position // page_tokens; layout.place(page) says who stores it
    ...                             # compute, write rows
    request.seal(prompt)            # whole pages can be matched from now on
    request.release()

Every call that fails raises quire.Error, which carries the status. What each call means stands in the C headers; names
are the same. Objects end with close() or a with block; using one afterwards raises, as releasing a request twice does.
One that is forgotten instead ends when Python collects it, the banks of a worker together.

The library is found by the variable QUIRE_LIBRARY, else by the system's loader. load(path) chooses one before the first
object is made. Standard library only."""

import array
import ctypes
import ctypes.util
import os
import weakref
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64
from ctypes import c_void_p, sizeof

ABI = 1
OK, ARGUMENT, STATE, UNSUPPORTED, AGAIN, NOT_FOUND = 0, 1, 2, 3, 4, 5
REQUEST, NONFINITE, CANCELLED = 16, 17, 18
PEER, MISMATCH = 32, 33
ABORTED, RANK = 48, 49
MEMORY, IO, CORRUPT = 64, 65, 66

FORMATS = {"f32": 1, "bf16": 2, "fp8": 3}
MODELS = ("target", "draft")
KINDS = ("latent", "index key")
CHAINS = {"xxh3": 1, "sha256": 2}
COPY, POISON, DIGEST, PACK, UNPACK = 1, 2, 3, 4, 5
PAGE_NONE = -1


class Error(Exception):
    """A call that failed: status (one of the numbers above), name ("again", ...), where and text."""

    def __init__(self, status, call, where="", text=""):
        self.status, self.call, self.where, self.text = status, call, where, text
        self.name = _library().quire_kv_status_name(status).decode()
        super().__init__(f"{call}: {self.name}" + (f": {where}: {text}" if text else ""))


# --- the structs of the headers, field by field ---

_LIMITS = {
    c_int32: (-(1 << 31), (1 << 31) - 1), c_uint32: (0, (1 << 32) - 1),
    c_int64: (-(1 << 63), (1 << 63) - 1), c_uint64: (0, (1 << 64) - 1),
}


def _fit(call, name, kind, value):
    """ctypes cuts an int to the size of its type and says nothing: page 1 << 32 would be page 0."""
    low, high = _LIMITS.get(kind, (0, 0))
    if low < high and isinstance(value, int) and not low <= value <= high:
        raise Error(ARGUMENT, call, name, f"{value} is outside {low} to {high}")


class ErrorRecord(Structure):
    _fields_ = [("status", c_int32), ("where", c_char * 64), ("text", c_char * 512)]


class Hash(Structure):
    _fields_ = [("low", c_uint64), ("high", c_uint64)]

    def __eq__(self, other):
        return isinstance(other, Hash) and (self.low, self.high) == (other.low, other.high)

    def __hash__(self):
        return hash((self.low, self.high))

    def __repr__(self):
        return bytes(self).hex()


class Sized(Structure):
    """A struct that begins with its own size."""

    def __init__(self, **values):
        for name, kind in self._fields_:
            _fit(type(self).__name__, name, kind, values.get(name))
        super().__init__(**values)
        self.size = sizeof(self)

    def __repr__(self):
        return type(self).__name__ + "(" + ", ".join(f"{n}={getattr(self, n)}" for n, *_ in self._fields_[1:]) + ")"


def _fields(**types):
    return [("size", c_size_t)] + list(types.items())


class LayoutOptions(Sized):
    _fields_ = _fields(
        format=c_int32, page_tokens=c_int32, target_layers=c_int32, draft_layers=c_int32, owns_indexer=POINTER(c_uint8),
        ranks=c_int32, replicated=c_int32, pages=c_int32, reserved=c_int32, numerics_id=c_char_p, model=Hash,
    )


class LayoutInfo(Sized):
    _fields_ = _fields(
        format=c_int32, page_tokens=c_int32, target_layers=c_int32, draft_layers=c_int32, ranks=c_int32,
        storage_ranks=c_int32, pages=c_int32, parts=c_int32, page_bytes=c_int64, rest_bytes=c_int64, fingerprint=Hash,
    )


class Part(Sized):
    _fields_ = _fields(
        model=c_int32, kind=c_int32, layer=c_int32, pieces=c_int32, row_bytes=c_int32, page_bytes=c_int32,
        piece_offset=c_int32 * 2, piece_row_bytes=c_int32 * 2,
    )


class Place(Sized):
    _fields_ = _fields(owner=c_int32, local=c_int32, sender=c_int32, ranks=c_uint32)


class CacheOptions(Sized):
    _fields_ = _fields(
        requests_max=c_int32, request_pages_max=c_int32, chain_kind=c_int32, chain_spread_max=c_int32,
        lost_pages_max=c_int32, poison=c_int32, tenant_salt=c_char_p, tenant_salt_bytes=c_int32, reserved=c_int32,
        allocator=c_void_p,
    )


class Reserve(Sized):
    _fields_ = _fields(
        tokens=POINTER(c_int32), tokens_count=c_int32, reserve_tokens=c_int32, no_match=c_int32, reserved=c_int32
    )


class Stats(Sized):
    _fields_ = _fields(
        pages=c_int64, free=c_int64, filling=c_int64, sealed=c_int64, quarantined=c_int64, cached=c_int64,
        evictable=c_int64, lost=c_int64, refs=c_int64, pins=c_int64, requests=c_int64, healthy=c_int64,
        fill_tokens=c_int64, hit_tokens=c_int64, inserted_pages=c_int64, duplicate_pages=c_int64, evicted_pages=c_int64,
        refusals=c_int64,
    )


class Command(Structure):
    """An order to ranks; quire.command() makes one."""

    _fields_ = [
        ("op", c_uint64), ("epoch", c_uint64), ("kind", c_int32), ("ranks", c_uint32), ("page", c_int32),
        ("target", c_int32), ("request_page", c_int32), ("valid_tokens", c_int32), ("host_offset", c_int64),
        ("chain", Hash),
    ]

    def __init__(self, **values):
        for name, kind in self._fields_:
            _fit("Command", name, kind, values.get(name))
        super().__init__(**values)


class Ack(Structure):
    _fields_ = [("op", c_uint64), ("epoch", c_uint64), ("status", c_int32), ("rank", c_int32), ("digest", Hash)]


class BankOptions(Sized):
    _fields_ = _fields(
        rank=c_int32, queue_commands=c_int32, execution=c_int32, reserved=c_int32, allocator=c_void_p
    )


class Fault(Sized):
    _fields_ = _fields(op=c_uint64, part=c_int32, reserved=c_int32)


# --- the functions. Pages and requests are one-field structs in C, passed as the number they hold ---

_HANDLE, _OUT, _ERROR = c_void_p, c_void_p, POINTER(ErrorRecord)
FUNCTIONS = {
    "quire_kv_digest": [c_char_p, c_size_t, POINTER(Hash)],
    "quire_kv_layout_create": [POINTER(LayoutOptions), POINTER(c_void_p), _ERROR],
    "quire_kv_layout_destroy": [_HANDLE],
    "quire_kv_layout_info": [_HANDLE, POINTER(LayoutInfo)],
    "quire_kv_layout_part": [_HANDLE, c_int32, POINTER(Part)],
    "quire_kv_layout_place": [_HANDLE, c_int32, POINTER(Place)],
    "quire_kv_layout_local_pages": [_HANDLE, c_int32, POINTER(c_int32)],
    "quire_kv_cache_bytes": [_HANDLE, POINTER(CacheOptions), POINTER(c_int64), _ERROR],
    "quire_kv_cache_create": [_HANDLE, POINTER(CacheOptions), POINTER(c_void_p), _ERROR],
    "quire_kv_cache_destroy": [_HANDLE],
    "quire_kv_cache_match": [_HANDLE, POINTER(c_int32), c_int32, POINTER(c_int32)],
    "quire_kv_cache_reserve": [_HANDLE, POINTER(Reserve), POINTER(c_uint64), _ERROR],
    "quire_kv_cache_refill": [_HANDLE, c_uint64, POINTER(Reserve), _ERROR],
    "quire_kv_cache_grow": [_HANDLE, c_uint64, c_int32, _ERROR],
    "quire_kv_cache_rematch": [_HANDLE, c_uint64, POINTER(c_int32), c_int32, POINTER(c_int32)],
    "quire_kv_cache_pages": [_HANDLE, c_uint64, POINTER(c_int32), c_int32, POINTER(c_int32)],
    "quire_kv_cache_tokens": [_HANDLE, c_uint64, POINTER(c_int32)],
    "quire_kv_cache_seal": [_HANDLE, c_uint64, POINTER(c_int32), c_int32, _ERROR],
    "quire_kv_cache_reset": [_HANDLE, c_uint64],
    "quire_kv_cache_release": [_HANDLE, c_uint64],
    "quire_kv_cache_evict": [_HANDLE, c_int32, POINTER(c_int32)],
    "quire_kv_cache_drop": [_HANDLE, c_int32, POINTER(c_int32)],
    "quire_kv_cache_flush": [_HANDLE, POINTER(c_int32)],
    "quire_kv_cache_chain": [_HANDLE, POINTER(c_int32), c_int32, POINTER(Hash)],
    "quire_kv_cache_commands": [_HANDLE, POINTER(Command), c_int32, POINTER(c_int32)],
    "quire_kv_cache_complete": [_HANDLE, POINTER(Ack), _ERROR],
    "quire_kv_cache_stats": [_HANDLE, POINTER(Stats)],
    "quire_kv_cache_check": [_HANDLE, _ERROR],
    "quire_kv_bank_create": [_HANDLE, POINTER(BankOptions), POINTER(c_void_p), _ERROR],
    "quire_kv_bank_destroy": [_HANDLE],
    "quire_kv_bank_bind": [_HANDLE, c_int32, c_void_p, c_int64, c_int32, _ERROR],
    "quire_kv_bank_allocate": [_HANDLE, _ERROR],
    "quire_kv_bank_host": [_HANDLE, c_void_p, c_int64, _ERROR],
    "quire_kv_bank_connect": [POINTER(c_void_p), c_int32, _ERROR],
    "quire_kv_bank_page": [_HANDLE, c_int32, c_int32, POINTER(c_void_p)],
    "quire_kv_bank_submit": [_HANDLE, POINTER(Command), _ERROR],
    "quire_kv_bank_poll": [_HANDLE, POINTER(Ack), c_int32, POINTER(c_int32)],
    "quire_kv_bank_fault": [_HANDLE, POINTER(Fault), _ERROR],
    "quire_kv_bank_drain": [_HANDLE],
}

_loaded = None


def load(path):
    """Loads the library at path; once, before anything else is used."""
    global _loaded
    library = ctypes.CDLL(path)
    library.quire_kv_abi.restype = c_int32
    library.quire_version.restype = c_char_p
    library.quire_kv_status_name.restype = c_char_p
    library.quire_kv_status_name.argtypes = [c_int32]
    if library.quire_kv_abi() < ABI:
        raise ImportError(f"{path} has interface {library.quire_kv_abi()}, this package needs {ABI}")
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = c_int32, arguments
    _loaded = library
    return library


def _library():
    if _loaded is None:
        path = os.environ.get("QUIRE_LIBRARY") or ctypes.util.find_library("quire")
        if not path:
            raise ImportError("libquire is not installed, and QUIRE_LIBRARY does not say where it is")
        load(path)
    return _loaded


def _call(name, *arguments):
    """Calls a function; one whose last argument is an error record gets it from here."""
    types = FUNCTIONS[name]
    for place, (kind, value) in enumerate(zip(types, arguments)):
        _fit(name, f"argument {place}", kind, value)
    error = ErrorRecord()
    if types[-1] is _ERROR and len(arguments) < len(types):
        arguments += (byref(error),)
    status = getattr(_library(), name)(*arguments)
    if status != OK:
        raise Error(status, name, error.where.decode(), error.text.decode())


def _tokens(tokens):
    try:
        numbers = array.array("i", tokens)
    except OverflowError:
        raise Error(ARGUMENT, "tokens", "tokens", "a token is outside 32 bits") from None
    count = len(numbers)
    return (c_int32 * max(count, 1))(*numbers), count


def version():
    return _library().quire_version().decode()


def digest(data):
    """XXH3-128 of bytes."""
    out = Hash()
    _call("quire_kv_digest", bytes(data), len(data), byref(out))
    return out


def _forget(destroy, handle, _kept):
    """Ends an object that nobody can reach any more; _kept, what it reads and writes, lives until it has."""
    getattr(_library(), destroy)(handle)


class _Object:
    _destroy = ""

    def __init__(self):
        self.handle = None
        self._kept = []  # buffers that the object reads and writes

    def _made(self, handle):
        self.handle = handle.value
        self._end = weakref.finalize(self, _forget, self._destroy, self.handle, self._kept)
        self._end.atexit = False  # a view of a page may outlive it there; the process's end takes all

    def close(self):
        """Destroys the object. Again does nothing."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._end.detach()
            _call(self._destroy, handle)

    def _live(self):
        if self.handle is None:
            raise Error(STATE, type(self).__name__, "handle", "the object is closed")
        return self.handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Layout(_Object):
    """Which bytes a page has, and who stores it (kv_layout.h). info holds the numbers."""

    _destroy = "quire_kv_layout_destroy"

    def __init__(self, format, target_layers, pages, numerics_id, *, page_tokens=0, draft_layers=0, owns_indexer=None,
                 ranks=1, replicated=False, model=b""):
        super().__init__()
        if "\0" in numerics_id:  # for C it would end there
            raise Error(ARGUMENT, "Layout", "numerics_id", "has a zero byte in it")
        options = LayoutOptions(
            format=FORMATS.get(format, 0), page_tokens=page_tokens, target_layers=target_layers,
            draft_layers=draft_layers, ranks=ranks, replicated=int(replicated), pages=pages,
            numerics_id=numerics_id.encode(), model=model if isinstance(model, Hash) else digest(model),
        )
        if owns_indexer is not None:
            if len(owns_indexer) != target_layers:
                raise ValueError("owns_indexer must have one entry a target layer")
            options.owns_indexer = (c_uint8 * max(target_layers, 1))(*[int(bool(owns)) for owns in owns_indexer])
        handle = c_void_p()
        _call("quire_kv_layout_create", byref(options), byref(handle))
        self._made(handle)
        self.info = LayoutInfo()
        _call("quire_kv_layout_info", self.handle, byref(self.info))

    def part(self, index):
        part = Part()
        _call("quire_kv_layout_part", self._live(), index, byref(part))
        return part

    def parts(self):
        return [self.part(i) for i in range(self.info.parts)]

    def place(self, page):
        place = Place()
        _call("quire_kv_layout_place", self._live(), page, byref(place))
        return place

    def local_pages(self, rank):
        pages = c_int32()
        _call("quire_kv_layout_local_pages", self._live(), rank, byref(pages))
        return pages.value

    def command(self, kind, page, *, op, target=PAGE_NONE, valid_tokens=None, request_page=0, host_offset=0, chain=None,
                epoch=0):
        """A command with the ranks that its kind asks for."""
        place = self.place(target if kind == COPY else page)
        return Command(
            op=op, epoch=epoch, kind=kind, ranks=1 << place.sender if kind == PACK else place.ranks, page=page,
            target=target, request_page=request_page, valid_tokens=valid_tokens or self.info.page_tokens,
            host_offset=host_offset, chain=chain or Hash(),
        )


class Request:
    """An open request of a cache."""

    def __init__(self, cache, number):
        self.cache, self.number = cache, number

    @property
    def slot(self):
        """A number below requests_max that no other open request of the cache has."""
        return self.number & 0xFFFF

    @property
    def tokens(self):
        """Positions below need no computing."""
        tokens = c_int32()
        _call("quire_kv_cache_tokens", self.cache._live(), self.number, byref(tokens))
        return tokens.value

    def pages(self):
        """Page ids by request page."""
        count = c_int32()
        _call("quire_kv_cache_pages", self.cache._live(), self.number, None, 0, byref(count))
        pages = (c_int32 * max(count.value, 1))()
        _call("quire_kv_cache_pages", self.cache._live(), self.number, pages, count.value, byref(count))
        return list(pages[: count.value])

    def seal(self, tokens):
        """The rows of all these tokens are in their pages."""
        array, count = _tokens(tokens)
        _call("quire_kv_cache_seal", self.cache._live(), self.number, array, count)

    def grow(self, tokens):
        _call("quire_kv_cache_grow", self.cache._live(), self.number, tokens)

    def rematch(self, tokens):
        array, count = _tokens(tokens)
        won = c_int32()
        _call("quire_kv_cache_rematch", self.cache._live(), self.number, array, count, byref(won))
        return won.value

    def reset(self):
        _call("quire_kv_cache_reset", self.cache._live(), self.number)

    def refill(self, tokens, headroom=0, match=True):
        _call("quire_kv_cache_refill", self.cache._live(), self.number, byref(_reserve(tokens, headroom, match)))

    def release(self):
        _call("quire_kv_cache_release", self.cache._live(), self.number)


def _reserve(tokens, headroom, match):
    array, count = _tokens(tokens)
    return Reserve(tokens=array, tokens_count=count, reserve_tokens=headroom, no_match=int(not match))


class Cache(_Object):
    """Which request holds which pages, what can be matched, who is evicted (kv_cache.h)."""

    _destroy = "quire_kv_cache_destroy"

    def __init__(self, layout, *, requests_max=0, request_pages_max=0, chain="xxh3", chain_spread_max=0,
                 lost_pages_max=0, poison=False, tenant_salt=b""):
        super().__init__()
        options = CacheOptions(
            requests_max=requests_max, request_pages_max=request_pages_max, chain_kind=CHAINS.get(chain, -1),
            chain_spread_max=chain_spread_max, lost_pages_max=lost_pages_max, poison=int(poison),
            tenant_salt=tenant_salt or None, tenant_salt_bytes=len(tenant_salt),
        )
        handle = c_void_p()
        _call("quire_kv_cache_create", layout._live(), byref(options), byref(handle))
        self._made(handle)

    def match(self, tokens):
        """Number of whole pages of these tokens in the tree."""
        array, count = _tokens(tokens)
        pages = c_int32()
        _call("quire_kv_cache_match", self._live(), array, count, byref(pages))
        return pages.value

    def reserve(self, tokens, headroom=0, match=True):
        number = c_uint64()
        _call("quire_kv_cache_reserve", self._live(), byref(_reserve(tokens, headroom, match)), byref(number))
        return Request(self, number.value)

    def evict(self, pages):
        evicted = c_int32()
        _call("quire_kv_cache_evict", self._live(), pages, byref(evicted))
        return evicted.value

    def drop(self, page):
        left = c_int32()
        _call("quire_kv_cache_drop", self._live(), page, byref(left))
        return left.value

    def flush(self):
        left = c_int32()
        _call("quire_kv_cache_flush", self._live(), byref(left))
        return left.value

    def chain(self, tokens):
        """The name of the page that ends with the last of these tokens."""
        array, count = _tokens(tokens)
        chain = Hash()
        _call("quire_kv_cache_chain", self._live(), array, count, byref(chain))
        return chain

    def commands(self, most=64):
        commands = (Command * max(most, 1))()
        count = c_int32()
        _call("quire_kv_cache_commands", self._live(), commands, most, byref(count))
        return [Command.from_buffer_copy(commands[i]) for i in range(count.value)]

    def complete(self, ack):
        _call("quire_kv_cache_complete", self._live(), byref(ack))

    def stats(self):
        stats = Stats()
        _call("quire_kv_cache_stats", self._live(), byref(stats))
        return stats

    def check(self):
        """Raises if the cache's own books do not balance."""
        _call("quire_kv_cache_check", self._live())


class Bank(_Object):
    """The memory of one rank, and commands executed on it (kv_bank.h)."""

    _destroy = "quire_kv_bank_destroy"

    def __init__(self, layout, rank=0, *, queue_commands=0, own_thread=True):
        super().__init__()
        options = BankOptions(rank=rank, queue_commands=queue_commands, execution=0 if own_thread else 1)
        handle = c_void_p()
        _call("quire_kv_bank_create", layout._live(), byref(options), byref(handle))
        self._made(handle)
        self.part_bytes = [part.page_bytes for part in layout.parts()]
        self._views = weakref.WeakValueDictionary()  # pages that somebody looks at
        self._peers = []  # the banks of a worker read each other's memory: they are reachable together or not at all

    def _address(self, buffer, offset, bytes_needed):
        if isinstance(buffer, int):
            return buffer + offset
        view = (c_uint8 * memoryview(buffer).nbytes).from_buffer(buffer)
        if offset < 0 or offset + bytes_needed > sizeof(view):
            raise ValueError(f"{bytes_needed} bytes at {offset} do not lie in a buffer of {sizeof(view)}")
        self._kept.append(view)
        return ctypes.addressof(view) + offset

    def bind(self, part, buffer, page_stride, pages, offset=0):
        """Memory for one part: a writable buffer, kept as long as the bank, or an address (of a tensor, say)."""
        known = 0 <= part < len(self.part_bytes) and pages > 0 and page_stride >= 0  # the library refuses the others
        needed = (pages - 1) * page_stride + self.part_bytes[part] if known else 0
        address = self._address(buffer, offset, needed)
        _call("quire_kv_bank_bind", self._live(), part, address, page_stride, pages)

    def allocate(self):
        _call("quire_kv_bank_allocate", self._live())

    def host(self, buffer, bytes=None, offset=0):
        """Host memory for PACK and UNPACK."""
        bytes = memoryview(buffer).nbytes - offset if bytes is None else bytes
        _call("quire_kv_bank_host", self._live(), self._address(buffer, offset, bytes), bytes)

    def page(self, part, page):
        """A page of a part as a writable memoryview. While there is one the bank cannot be closed."""
        address = c_void_p()
        _call("quire_kv_bank_page", self._live(), part, page, byref(address))
        memory = (c_uint8 * self.part_bytes[part]).from_address(address.value)
        memory.bank = self  # whoever sees the page keeps its bank
        self._views[id(memory)] = memory
        return memoryview(memory).cast("B")

    def submit(self, command):
        _call("quire_kv_bank_submit", self._live(), byref(command))

    def poll(self, most=64):
        acks = (Ack * max(most, 1))()
        count = c_int32()
        _call("quire_kv_bank_poll", self._live(), acks, most, byref(count))
        return [Ack.from_buffer_copy(acks[i]) for i in range(count.value)]

    def drain(self):
        _call("quire_kv_bank_drain", self._live())

    def fault(self):
        """(Fault, text) of the last command that failed, None when none has."""
        fault, why = Fault(), ErrorRecord()
        try:
            _call("quire_kv_bank_fault", self._live(), byref(fault), byref(why))
        except Error as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return fault, why.text.decode()

    def close(self):
        if self.handle is not None and len(self._views) > 0:
            raise Error(STATE, "Bank", "page", "somebody still looks at a page: release the memoryview first")
        super().close()
        self._kept.clear()
        self._peers = []


def connect(banks):
    """Makes the banks of a worker, in the order of their ranks, known to each other."""
    handles = (c_void_p * max(len(banks), 1))(*[bank._live() for bank in banks])
    _call("quire_kv_bank_connect", handles, len(banks))
    for bank in banks:
        bank._peers = list(banks)


def execute(banks, command):
    """Runs one command on all its ranks and waits; returns the acks by rank. The banks have no other command open."""
    acks = []
    for rank, bank in enumerate(banks):
        if command.ranks >> rank & 1:
            bank.submit(command)
            bank.drain()
            acks += bank.poll()
    return acks
