"""The Python package against a library, given as the first argument: a cache's life, banks on Python's memory, and what
happens to calls that make no sense."""

import array
import ctypes
import gc
import os
import sys
import unittest
import weakref

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import quire  # noqa: E402

PAGE_TOKENS = 16


def make_layout(**changes):
    options = dict(format="f32", page_tokens=PAGE_TOKENS, target_layers=2, ranks=2, pages=12, numerics_id="python-test")
    options.update(changes)
    return quire.Layout(**options)


def prompt(seed, count):
    return [(seed * 7919 + i * 31) % 32000 for i in range(count)]


class Case(unittest.TestCase):
    def fails(self, status, call, *arguments, **named):
        with self.assertRaises(quire.Error) as caught:
            call(*arguments, **named)
        self.assertEqual(caught.exception.status, status, str(caught.exception))
        return caught.exception


class LayoutTest(Case):
    def test_numbers(self):
        with make_layout() as layout:
            self.assertEqual((layout.info.parts, layout.info.page_tokens, layout.info.storage_ranks), (4, 16, 2))
            self.assertEqual(layout.info.page_bytes, 2 * 16 * (2304 + 512))
            self.assertEqual(layout.info.rest_bytes % 4096, 0)
            self.assertEqual([(p.kind, p.layer, p.row_bytes) for p in layout.parts()],
                             [(0, 0, 2304), (1, 0, 512), (0, 1, 2304), (1, 1, 512)])
            place = layout.place(7)
            self.assertEqual((place.owner, place.local, place.sender, place.ranks), (1, 3, 1, 2))
            self.assertEqual([layout.local_pages(r) for r in range(2)], [6, 6])
            self.fails(quire.ARGUMENT, layout.place, 12)
            self.fails(quire.ARGUMENT, layout.place, -1)
            self.fails(quire.ARGUMENT, layout.part, 4)

    def test_fingerprint_names_model_and_numerics(self):
        prints = set()
        for changes in ({}, {"numerics_id": "other"}, {"model": b"weights"}, {"format": "fp8"}, {"page_tokens": 32}):
            with make_layout(**changes) as layout:
                prints.add(layout.info.fingerprint)
        self.assertEqual(len(prints), 5)
        with make_layout(pages=99, ranks=3) as layout:  # where pages lie is not part of what they are
            self.assertIn(layout.info.fingerprint, prints)

    def test_shared_selection(self):
        with make_layout(format="bf16", target_layers=3, draft_layers=1, owns_indexer=[1, 0, 1]) as layout:
            kinds = [(quire.MODELS[p.model], quire.KINDS[p.kind], p.layer) for p in layout.parts()]
            self.assertEqual(kinds, [("target", "latent", 0), ("target", "index key", 0), ("target", "latent", 1),
                                     ("target", "latent", 2), ("target", "index key", 2), ("draft", "latent", 0),
                                     ("draft", "index key", 0)])

    def test_refusals_name_the_field(self):
        for changes in ({"format": "fp4"}, {"ranks": 17}, {"ranks": -1}, {"pages": 0}, {"pages": 1 << 30},
                        {"target_layers": 0}, {"target_layers": 257}, {"draft_layers": 2}, {"page_tokens": 257},
                        {"numerics_id": ""}, {"numerics_id": "x" * 129}):
            field = next(iter(changes))
            error = self.fails(quire.ARGUMENT, make_layout, **changes)
            self.assertIn(field, error.text)

    def test_numbers_are_not_cut(self):
        past = 1 << 32
        for changes in ({"ranks": past + 2}, {"pages": past + 12}, {"page_tokens": past}, {"numerics_id": "a\0b"}):
            error = self.fails(quire.ARGUMENT, make_layout, **changes)
            self.assertEqual(error.where, next(iter(changes)))
        with make_layout() as layout, quire.Cache(layout) as cache, quire.Bank(layout) as bank:
            for call in (layout.part, layout.place, layout.local_pages, cache.evict, cache.drop):
                self.fails(quire.ARGUMENT, call, past)
            for tokens in ([past + 1], [-1 - (1 << 31)]):
                self.fails(quire.ARGUMENT, cache.match, tokens)
            self.fails(quire.ARGUMENT, quire.Cache, layout, requests_max=past + 4)
            self.fails(quire.ARGUMENT, cache.reserve, [1], headroom=past)
            # cut, it would be part 0, outside the buffer
            self.fails(quire.ARGUMENT, bank.bind, past, bytearray(64), 1 << 20, 6)
            self.fails(quire.ARGUMENT, quire.Command, ranks=past + 1)


class CacheTest(Case):
    def setUp(self):
        self.layout = make_layout()
        self.cache = quire.Cache(self.layout, requests_max=4)
        self.addCleanup(self.layout.close)
        self.addCleanup(self.cache.close)

    def tearDown(self):
        if self.cache.handle is not None:
            self.cache.check()

    def serve(self, tokens, **named):
        request = self.cache.reserve(tokens, **named)
        request.seal(tokens)
        return request

    def test_match_reserve_seal(self):
        tokens = prompt(1, 40)
        self.assertEqual(self.cache.match(tokens), 0)
        request = self.cache.reserve(tokens, headroom=10)
        self.assertEqual((request.tokens, len(request.pages())), (0, 4))
        self.assertEqual(self.cache.match(tokens), 0)  # nothing can be found before it is sealed
        request.seal(tokens)
        self.assertEqual(self.cache.match(tokens), 2)
        self.assertEqual(self.cache.match(tokens[:32]), 1)  # the last token is always computed
        again = self.cache.reserve(tokens)
        self.assertEqual(again.tokens, 32)
        self.assertEqual(again.pages()[:2], request.pages()[:2])
        self.assertNotEqual(again.slot, request.slot)
        self.assertEqual(self.cache.reserve(tokens, match=False).tokens, 0)

    def test_release_once(self):
        request = self.serve(prompt(1, 20))
        request.release()
        self.fails(quire.NOT_FOUND, request.release)
        self.fails(quire.NOT_FOUND, request.reset)
        self.fails(quire.NOT_FOUND, request.pages)
        self.fails(quire.NOT_FOUND, request.seal, prompt(1, 20))
        self.assertEqual(self.cache.stats().requests, 0)
        self.assertNotEqual(self.serve(prompt(1, 20)).number, request.number)

    def test_foreign_request(self):
        with quire.Cache(self.layout) as other:
            mine, theirs = self.cache.reserve(prompt(1, 20)), other.reserve(prompt(1, 20))
            self.assertNotEqual(mine.number, theirs.number)
            theirs.cache = self.cache
            self.fails(quire.NOT_FOUND, theirs.release)
            self.assertEqual(self.cache.stats().requests, 1)

    def test_evict_and_drop(self):
        self.serve(prompt(1, 49)).release()
        self.serve(prompt(2, 33)).release()
        self.assertEqual(self.cache.stats().cached, 5)
        self.assertEqual(self.cache.evict(1), 1)  # the oldest chain loses its end
        self.assertEqual((self.cache.match(prompt(1, 49)), self.cache.match(prompt(2, 33))), (2, 2))
        held = self.cache.reserve(prompt(2, 33))
        self.assertEqual(self.cache.drop(held.pages()[0]), 2)
        self.assertEqual(self.cache.match(prompt(2, 33)), 0)
        self.assertEqual(self.cache.drop(held.pages()[0]), 0)
        self.fails(quire.ARGUMENT, self.cache.drop, 12)
        self.fails(quire.ARGUMENT, self.cache.drop, -1)
        self.fails(quire.ARGUMENT, self.cache.evict, -1)
        held.release()
        self.assertEqual(self.cache.flush(), 2)
        stats = self.cache.stats()
        self.assertEqual((stats.free, stats.cached, stats.healthy), (12, 0, 1))

    def test_full(self):
        first = self.cache.reserve(prompt(1, 16 * 8))
        self.fails(quire.AGAIN, self.cache.reserve, prompt(2, 16 * 8))
        self.assertIn("12", self.fails(quire.REQUEST, self.cache.reserve, prompt(2, 16 * 13)).text)
        self.fails(quire.ARGUMENT, self.cache.reserve, [])
        self.fails(quire.ARGUMENT, self.cache.reserve, [1], headroom=-1)
        first.grow(16 * 12)
        self.fails(quire.REQUEST, first.grow, 16 * 12 + 1)
        self.fails(quire.ARGUMENT, first.grow, -1)
        self.fails(quire.ARGUMENT, first.seal, prompt(1, 16 * 13))
        self.assertEqual(self.cache.stats().refusals, 1)

    def test_preempt_and_resume(self):
        tokens = prompt(1, 40)
        request = self.serve(tokens)
        self.fails(quire.STATE, request.refill, tokens)
        request.reset()
        self.assertEqual(request.pages(), [])
        request.refill(tokens)
        self.assertEqual(request.tokens, 32)

    def test_rematch(self):
        tokens = prompt(1, 40)
        waiting = self.cache.reserve(tokens)
        self.serve(tokens)
        self.assertEqual(waiting.rematch(tokens), 32)
        self.assertEqual(waiting.tokens, 32)

    def test_chain_depends_on_all_before(self):
        tokens = prompt(1, 40)
        changed = [tokens[0] + 1] + tokens[1:]
        self.assertEqual(self.cache.chain(tokens), self.cache.chain(list(tokens)))
        self.assertNotEqual(self.cache.chain(tokens), self.cache.chain(changed))
        with quire.Cache(self.layout, tenant_salt=b"tenant", chain="sha256") as other:
            self.assertNotEqual(self.cache.chain(tokens), other.chain(tokens))

    def test_closed(self):
        handle = self.cache.handle
        self.cache.close()
        self.fails(quire.STATE, self.cache.stats)
        self.cache.close()
        raw = quire._library()
        self.assertEqual(raw.quire_kv_cache_destroy(handle), quire.STATE)
        self.assertEqual(raw.quire_kv_cache_check(handle, None), quire.STATE)


class BankTest(Case):
    def setUp(self):
        self.layout = make_layout()
        self.addCleanup(self.layout.close)
        self.stride = self.layout.info.page_bytes
        self.memory = [self.aligned(self.stride * 6) for _ in range(2)]
        self.host = self.aligned(self.layout.info.rest_bytes)
        self.banks = []
        for rank in range(2):
            bank = quire.Bank(self.layout, rank)
            self.addCleanup(bank.close)
            self.banks.append(bank)
            buffer, start = self.memory[rank]
            offset = start
            for part in range(self.layout.info.parts):
                bank.bind(part, buffer, self.stride, 6, offset)
                offset += bank.part_bytes[part]
            bank.host(self.host[0], self.layout.info.rest_bytes, self.host[1])

    @staticmethod
    def aligned(size):
        """A buffer with that many bytes at a multiple of 64, and where they begin in it."""
        buffer = bytearray(size + 64)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        return buffer, -address % 64

    def fill(self, page, value):
        rank = self.layout.place(page).sender
        for part in range(self.layout.info.parts):
            view = self.banks[rank].page(part, page)
            view[:] = bytes((value + part + i) & 0x3F for i in range(len(view)))

    def test_pack_unpack(self):
        quire.connect(self.banks)
        self.fill(3, 5)
        chain = quire.Hash(1, 2)
        packed = quire.execute(self.banks, self.layout.command(quire.PACK, 3, op=1, request_page=2, chain=chain))
        self.assertEqual([(a.op, a.status, a.rank) for a in packed], [(1, quire.OK, 1)])
        command = self.layout.command(quire.UNPACK, 4, op=2, request_page=2, chain=chain)
        back = quire.execute(self.banks, command)
        self.assertEqual((back[0].rank, back[0].status, back[0].digest), (0, quire.OK, packed[0].digest))
        self.assertEqual(bytes(self.banks[0].page(2, 4)), bytes(self.banks[1].page(2, 3)))
        copied = quire.execute(self.banks, self.layout.command(quire.COPY, 4, target=5, op=3))
        self.assertEqual(copied[0].digest, packed[0].digest)
        command.chain = quire.Hash(1, 3)
        self.assertEqual(quire.execute(self.banks, command)[0].status, quire.MISMATCH)
        fault, text = self.banks[0].fault()
        self.assertEqual((fault.op, fault.part), (2, -1))
        self.assertIn("chain", text)

    def test_refused_commands(self):
        command = self.layout.command(quire.DIGEST, 3, op=1)
        self.fails(quire.STATE, self.banks[1].submit, command)
        quire.connect(self.banks)
        self.fails(quire.STATE, quire.connect, self.banks)
        self.fails(quire.ARGUMENT, self.banks[0].submit, command)
        for field, value in (("kind", 9), ("kind", 0), ("page", 12), ("page", -1), ("ranks", 0), ("ranks", 3),
                             ("valid_tokens", 17), ("valid_tokens", 0), ("host_offset", 4096), ("target", 1)):
            bad = quire.Command.from_buffer_copy(command)
            setattr(bad, field, value)
            self.fails(quire.ARGUMENT, self.banks[1].submit, bad)
        self.assertEqual(self.banks[1].poll(), [])
        self.fails(quire.ARGUMENT, self.banks[0].page, 0, 3)  # the other rank's
        self.assertIsNone(self.banks[0].fault())

    def test_a_peer_that_is_gone(self):
        quire.connect(self.banks)
        self.banks[0].close()
        command = self.layout.command(quire.COPY, 2, target=3, op=1)
        self.fails(quire.STATE, self.banks[1].submit, command)

    def test_binding(self):
        buffer, start = self.memory[0]
        self.fails(quire.STATE, self.banks[0].bind, 0, buffer, self.stride, 6, start)
        with quire.Bank(self.layout, 1) as bank:
            self.fails(quire.ARGUMENT, bank.bind, 0, buffer, self.stride, 5, start)
            self.fails(quire.ARGUMENT, bank.bind, 0, buffer, 16, 6, start)
            for part in (-1, 4):
                self.fails(quire.ARGUMENT, bank.bind, part, buffer, self.stride, 6, start)
            self.fails(quire.ARGUMENT, bank.bind, 0, buffer, self.stride, 6, start + 8)
            with self.assertRaises(ValueError):
                bank.bind(0, buffer, self.stride, 60, start)
            self.fails(quire.STATE, bank.page, 0, 1)
            bank.allocate()
            self.assertEqual(bytes(bank.page(0, 1)[:4]), b"\xff\xff\xff\xff")
            self.fails(quire.STATE, bank.allocate)
        self.fails(quire.ARGUMENT, quire.Bank, self.layout, 2)

    def test_a_page_in_view(self):
        bank = quire.Bank(self.layout, 1)
        bank.allocate()
        view = bank.page(0, 1)
        part = view[4:8]  # keeps the page in view, as any slice of it
        self.fails(quire.STATE, bank.close)
        view.release()
        self.fails(quire.STATE, bank.close)
        part[:] = b"abcd"
        self.assertEqual(bytes(bank.page(0, 1)[4:8]), b"abcd")
        part.release()
        del view, part
        bank.close()
        bank.close()
        self.fails(quire.STATE, bank.page, 0, 1)

    def test_banks_that_are_forgotten(self):
        """What other banks of the worker read stays as long as one of them can be reached; then all of it ends."""
        banks, memory = [], []
        for rank in range(2):
            buffer = array.array("B", bytes(self.stride * 6 + 64))
            start = -buffer.buffer_info()[0] % 64
            banks.append(quire.Bank(self.layout, rank))
            for part in range(self.layout.info.parts):
                banks[rank].bind(part, buffer, self.stride, 6, start)
                start += banks[rank].part_bytes[part]
            memory.append(weakref.ref(buffer))
        del buffer
        quire.connect(banks)
        with banks[1].page(0, 1) as view:
            view[:] = bytes(range(256)) * (len(view) // 256)
        handles = [bank.handle for bank in banks]
        last = banks[0]
        del banks, view
        gc.collect()
        self.assertIsNotNone(memory[1]())
        copied = quire.execute([last], self.layout.command(quire.COPY, 1, target=0, op=1))
        self.assertEqual(copied[0].status, quire.OK)
        view = last.page(0, 0)
        self.assertEqual(bytes(view[:256]), bytes(range(256)))
        del last
        gc.collect()
        self.assertIsNotNone(memory[0]())  # somebody still looks at a page
        del view
        gc.collect()
        self.assertEqual([one() for one in memory], [None, None])
        for handle in handles:
            self.assertEqual(quire._library().quire_kv_bank_drain(handle), quire.STATE)

    def test_more_objects_than_handles(self):
        for _ in range(2000):  # nobody closes them
            quire.Cache(self.layout)
            make_layout()

    def test_poison_comes_as_commands(self):
        quire.connect(self.banks)
        with quire.Cache(self.layout, poison=True) as cache:
            request = cache.reserve(prompt(1, 33))
            pages = request.pages()
            request.seal(prompt(1, 33))
            request.release()
            cache.evict(9)
            commands = cache.commands()
            self.assertEqual(sorted(command.page for command in commands), sorted(pages))
            self.assertEqual(cache.stats().quarantined, 3)
            for command in commands:
                for ack in quire.execute(self.banks, command):
                    cache.complete(ack)
                    self.fails(quire.STATE, cache.complete, ack)
            self.assertEqual(cache.stats().free, 12)
            cache.check()


class RawTest(Case):
    """Calls the package would not make."""

    def test_null_everywhere(self):
        library = quire._library()
        for name, types in quire.FUNCTIONS.items():
            nulls = [
                0 if t in (ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_size_t) else None for t in types
            ]
            wanted = quire.OK if name.endswith("_destroy") else quire.ARGUMENT
            self.assertEqual(getattr(library, name)(*nulls), wanted, name)

    def test_handles_of_other_kinds(self):
        library = quire._library()
        with make_layout() as layout, quire.Cache(layout) as cache:
            self.assertEqual(library.quire_kv_cache_check(layout.handle, None), quire.ARGUMENT)
            self.assertEqual(library.quire_kv_bank_drain(cache.handle), quire.ARGUMENT)
            self.assertEqual(library.quire_kv_layout_destroy(cache.handle), quire.ARGUMENT)
            self.assertEqual(library.quire_kv_cache_check(layout.handle + 1, None), quire.ARGUMENT)
            self.assertEqual(library.quire_kv_cache_check(12345678, None), quire.ARGUMENT)
            cache.check()

    def test_sizes(self):
        library = quire._library()
        with make_layout() as layout:
            for size in (0, 4, 7, 20, 4104, (1 << 64) - 8):
                info = quire.LayoutInfo(pages=77)
                info.size = size
                self.assertEqual(library.quire_kv_layout_info(layout.handle, ctypes.byref(info)), quire.ARGUMENT)
                self.assertEqual(info.pages, 77)
            short = quire.LayoutInfo(pages=77, parts=77)
            short.size = 16  # the first two fields
            self.assertEqual(library.quire_kv_layout_info(layout.handle, ctypes.byref(short)), quire.OK)
            self.assertEqual((short.format, short.page_tokens, short.target_layers, short.pages), (1, 16, 0, 77))

    def test_struct_sizes(self):
        sizes = {quire.ErrorRecord: 580, quire.Hash: 16, quire.LayoutOptions: 72, quire.LayoutInfo: 72, quire.Part: 48,
                 quire.Place: 24, quire.CacheOptions: 56, quire.Reserve: 32, quire.Stats: 152, quire.Command: 64,
                 quire.Ack: 40, quire.BankOptions: 32, quire.Fault: 24}
        self.assertEqual({t: ctypes.sizeof(t) for t in sizes}, sizes)

    def test_names(self):
        self.assertRegex(quire.version(), r"^\d+\.\d+\.\d+$")
        self.assertEqual(quire._library().quire_kv_abi(), quire.ABI)
        self.assertEqual(quire._library().quire_kv_status_name(4).decode(), "again")
        self.assertEqual(quire._library().quire_kv_status_name(-7).decode(), "unknown")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        quire.load(sys.argv.pop(1))
    unittest.main()
