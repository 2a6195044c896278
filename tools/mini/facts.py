# SPDX-License-Identifier: Apache-2.0
"""Facts that can be stated, buried under prose, and asked for thousands of tokens later.

A *kind* of fact has a key ("Captain Marlow", "the silver box"), a value ("grey heron", "4831"), several wordings of the
statement and several of the question.  Values are drawn from large lists, so that a model that cannot look the fact up
has next to no chance of guessing it; a context always holds other facts of the same kind, so that copying *some* value
fails too.

The train / held-out split is by combination: `heldout(kind, statement, question, key)` hashes the four together, and
one combination in eight is never used in training.  All names, words and sentences here were written for this project.
"""

import zlib

FIRST = """Adam Agnes Albert Alfred Alice Amelia Andrew Anna Arthur Barbara Beatrice Benjamin Bertha Bridget Caroline
Cecil Charles Charlotte Clara Clement Conrad Cyril Daisy Daniel David Dorothy Edgar Edith Edmund Edward Eleanor
Elizabeth Ellen Emily Ernest Esther Ethel Eva Fanny Felix Florence Frances Francis Frank Frederick George Gerald Gilbert
Grace Hannah Harold Harriet Harry Helen Henry Herbert Hester Horace Hubert Hugh Ida Isabel Jacob James Jane Jasper
Jessie Joan John Jonas Joseph Julia Kate Laura Lawrence Leonard Lewis Lucy Luke Mabel Margaret Maria Martha Martin Mary
Matilda Matthew Maud Michael Miles Millicent Miriam Nancy Nathan Nicholas Nora Oliver Oscar Owen Patrick Paul Peter
Philip Phoebe Rachel Ralph Rebecca Reuben Richard Robert Roger Rose Rupert Ruth Samuel Sarah Sidney Simon Sophia Stella
Stephen Susan Sybil Theodore Thomas Timothy Tobias Ursula Valentine Victor Violet Walter Wilfred William
Winifred""".split()

LAST = """Abbott Alder Archer Ashby Atwood Baker Barlow Barton Beckett Bellamy Bennet Birch Blackwood Blake Bolton Bowen
Bradley Brand Brewer Briggs Brook Burton Butler Carter Chandler Chapman Clarke Clifford Cole Collier Cooper Crane
Crawford Crosby Cross Dalton Darby Dawson Denham Dixon Drake Draper Drew Dunn Eastman Ellis Fairfax Farmer Fenton
Fielding Fisher Fletcher Flint Forrest Foster Fowler Frost Garland Garner Gibbs Glover Gordon Graham Grant Graves Green
Grey Griffin Hale Hammond Harding Hargrave Harper Hart Hawkins Hayes Heath Hill Hobbs Holland Holmes Hooper Howard
Hudson Hunt Ingram Jarvis Kemp Kendall King Knight Lambert Lane Langley Lawson Linton Lloyd Lowe Mallory Manning Marlow
Marsh Marshall Mason Mercer Miller Mills Monk Moore Morgan Morton Nash Newton Norris North Osborne Page Palmer Parker
Payne Pearce Penrose Perkins Pike Porter Potter Pratt Price Quinn Ramsey Reed Reeves Rivers Robson Rowe Sanders Saville
Sawyer Sharp Shaw Shepherd Skinner Slater Snow Spencer Stanton Steele Stokes Stone Swift Tanner Taylor Temple Thorne
Tilney Tower Tucker Turner Vane Vernon Wade Wallace Walsh Ward Warren Waters Watts Webb Wells West Wheeler Whitby Wilde
Winter Wood Wright Wyatt Yates York""".split()

TITLE = """Captain Doctor Colonel Lady Lord Madam Major Miss Mr. Mrs. Parson Professor Sergeant Sir Squire Uncle Aunt
Cousin Judge Brother Sister""".split()

COLOUR = """amber black blue bronze brown copper cream crimson dark golden green grey ivory orange pale pink purple red
rusty scarlet silver snowy spotted striped violet white yellow""".split()

ANIMAL = """badger bear beaver bee bull camel cat cow crab crane cricket crow deer dog donkey dove duck eagle eel
elephant falcon ferret fish fox frog goat goose hare hawk hen heron horse hound lamb lark lion lizard magpie mole monkey
moth mouse mule otter owl ox parrot partridge peacock pheasant pig pigeon pony rabbit ram rat raven robin rook salmon
seal serpent sheep snail sparrow spider squirrel stag swallow swan tiger toad trout turkey turtle viper wasp weasel
whale wolf wren""".split()

ADJ = """ancient black blue brass broken bronze carved china copper cracked crooked crystal curious dusty faded flat
golden green grey heavy iron ivory large leather little long narrow new old painted plain polished red round rusty
silver small square steel stone strange tall tin velvet white wooden yellow""".split()

OBJECT = """anchor barrel basket bell book bottle bowl box bracelet brooch bucket candlestick cane casket chain chest
clock coin compass crown cup dagger diary drum fan fiddle flute glove goblet hammer harp hat helmet horn jar jug kettle
key knife ladder lamp lantern letter locket map mask medal mirror necklace needle pearl pen picture pipe pistol plate
purse ring saddle sceptre shield shoe spoon statue sword telescope trumpet trunk vase violin watch whistle""".split()

CONTAINER = """box cabinet casket cell chest cupboard door drawer gate desk safe strongbox trunk vault wardrobe tower
cellar cabin case locker""".split()

PLACE = [
    "altar", "apple tree", "arch", "attic floor", "barn", "bed", "bench", "bookcase", "bridge", "carpet", "chapel",
    "chimney", "church wall", "clock", "cottage", "cradle", "curtain", "dairy", "dovecote", "fence", "fountain",
    "garden wall", "gate", "granary", "haystack", "hearth", "hedge", "hen house", "ivy", "kitchen table", "library",
    "loft", "mill", "oak tree", "old well", "orchard wall", "organ", "oven", "pantry", "piano", "pillow", "pine tree",
    "porch", "pulpit", "quarry", "rose bush", "school", "shed", "sofa", "stable", "stairs", "statue", "summer house",
    "sundial", "tombstone", "waterfall", "willow", "window", "wood pile",
]
PREP = ["behind", "under", "beside", "near", "beneath", "inside", "below", "above"]

TOWN = """Aldbury Ambleside Arden Ashford Avonlea Bath Belford Berlin Beverley Bideford Boston Bristol Buxton Cairo
Calais Cambridge Canterbury Carlisle Chester Clifton Cork Cornwall Coventry Dover Dublin Dunmore Durham Edinburgh Exeter
Falmouth Florence Geneva Glasgow Gloucester Halifax Hastings Hereford Hull Ipswich Jersey Kendal Kingston Lancaster
Leeds Leicester Lincoln Lisbon Liverpool London Lyme Lyons Madrid Malta Manchester Margate Milan Moscow Naples Newcastle
Norwich Nottingham Oxford Paris Penzance Plymouth Portsmouth Prague Preston Quebec Ramsgate Reading Richmond Ripon Rome
Rotterdam Salisbury Scarborough Seville Sheffield Shrewsbury Southampton Stamford Stirling Stratford Sunderland Swansea
Taunton Torquay Turin Venice Vienna Wakefield Warwick Weymouth Whitehaven Winchester Windsor Worcester
Yarmouth""".split()

TRADE = """actor apothecary architect artist baker banker barber beekeeper blacksmith boatman bookbinder bookseller
bricklayer builder butcher butler carpenter chemist clerk clockmaker coachman cobbler cook cooper dancer dentist doctor
draper engineer farmer ferryman fiddler fireman fisherman florist gamekeeper gardener glazier goldsmith grocer guide
hatter hunter innkeeper jeweller judge lawyer librarian locksmith mason merchant miller miner musician nurse painter
pilot ploughman poet porter potter preacher printer rider saddler sailor sculptor shepherd singer smith soldier spinner
stonemason surgeon tailor tanner teacher thatcher tinker toymaker watchman weaver wheelwright woodcutter
writer""".split()

FLOWER = """bluebell buttercup carnation cowslip crocus daffodil daisy dahlia fern foxglove fuchsia geranium heather
honeysuckle hyacinth iris jasmine lavender lilac lily marigold mignonette myrtle orchid pansy peony pink poppy primrose
rose rosemary snowdrop sunflower sweetbriar thistle thyme tulip verbena violet wallflower""".split()

DISH = [
    "apple pie", "baked trout", "barley soup", "boiled beef", "bread and honey", "buttered toast", "cabbage soup",
    "cherry tart", "chicken pie", "cold mutton", "cold tongue", "fried eel", "fried eggs", "ginger cake",
    "gooseberry jam", "grilled bacon", "hot porridge", "lemon pudding", "lentil stew", "mince pie", "mushroom stew",
    "mutton chops", "oat cakes", "onion soup", "orange jelly", "oyster pie", "pea soup", "pickled herring",
    "pigeon pie", "plum cake", "potato soup", "rabbit stew", "raspberry tart", "rice pudding", "roast beef",
    "roast duck", "roast goose", "salted cod", "seed cake", "smoked ham", "stewed pears", "strawberry jam",
    "toasted cheese", "treacle tart", "turnip soup", "veal pie", "walnut bread",
]

CARGO = """almonds apples barley beer blankets books bricks candles carpets cheese china cider clocks coal cocoa coffee
copper corn cotton dates feathers figs flax flour furs ginger glass gold grapes grain gunpowder hay hemp herrings hides
honey iron ivory lace lead leather lemons linen marble nails oats oil olives onions oranges paper pepper pitch potatoes
raisins rice rope rum salt sand silk silver slate soap spices stone sugar tallow tar tea timber tin tobacco wax wheat
whisky wine wool""".split()

SHIP = """Albatross Amity Antelope Argo Aurora Bluebell Bonaventure Britannia Calypso Caroline Ceres Comet Constance
Cormorant Corsair Curlew Cygnet Dauntless Delight Diana Dolphin Dragon Endeavour Enterprise Falcon Felicity Flora
Fortune Galatea Gazelle Gloriana Golden Hope Good Intent Griffin Halcyon Harmony Hector Hercules Hermes Hesper Hope
Hyacinth Industry Iris Jason Juno Jupiter Kestrel Lark Laurel Leopard Lion Mariner Mayflower Medusa Mercury Mermaid
Minerva Neptune Nightingale Orion Osprey Pallas Pandora Panther Patience Pegasus Pelican Perseus Phoenix Providence
Queen Ranger Raven Reliance Resolution Rover Sapphire Saturn Seagull Sirius Sovereign Speedwell Spray Swallow Swift
Tempest Thetis Triton Trident Triumph Unicorn Valiant Venture Venus Vesta Victory Vulcan Wanderer Zephyr"""
SHIP = [w for w in SHIP.split() if w not in ("Golden", "Good", "Intent")]


def person(r):
    """A person's name in one of three shapes; two words in most cases."""
    x = r.random()
    if x < 0.6:
        return r.choice(FIRST) + " " + r.choice(LAST)
    if x < 0.9:
        return r.choice(TITLE) + " " + r.choice(LAST)
    return r.choice(TITLE[:1] + TITLE[1:3] + ["Old", "Young", "Little", "Poor", "Good"]) + " " + r.choice(FIRST)


def full_name(r):
    return r.choice(FIRST) + " " + r.choice(LAST)


def thing(r):
    return "the " + r.choice(ADJ) + " " + r.choice(OBJECT)


def container(r):
    return "the " + r.choice(ADJ) + " " + r.choice(CONTAINER)


def room(r):
    return "the " + r.choice(COLOUR) + " " + r.choice(
        "room hall chamber parlour library gallery cottage stable cellar garden barn boat house lodge kitchen".split())


def ship(r):
    return "the " + r.choice(SHIP)


def number(lo, hi):
    return lambda r: str(r.randrange(lo, hi))


def pick(words):
    return lambda r: r.choice(words)


# kind: (key, value, statements, questions).  {k} key, {K} key with a capital letter, {v} value.
KINDS = {
    "password": (person, lambda r: r.choice(COLOUR) + " " + r.choice(ANIMAL), [
        "The password of {k} is {v}.",
        "{K} chose {v} as a password.",
        "Remember that the password of {k} is {v}.",
        "If anyone asks for the password of {k}, it is {v}.",
        "{K} whispered that the password was {v}.",
        "As for the password that {k} uses, it is {v}.",
        "The secret words of {k} are {v}, and nobody else knows them.",
        "At the door of {k} one must say {v}."], [
        "What is the password of {k}?",
        "Which password did {k} choose?",
        "What are the secret words of {k}?",
        "Can you tell me the password that {k} uses?"]),
    "roomno": (person, number(100, 1000), [
        "{K} sleeps in room {v}.",
        "The room of {k} is number {v}.",
        "{K} was given room {v}.",
        "They took {k} to room {v}.",
        "You will find {k} in room {v}."], [
        "What is the number of the room of {k}?",
        "In which room does {k} sleep?",
        "Which room was given to {k}?"]),
    "code": (container, number(1000, 10000), [
        "The code of {k} is {v}.",
        "{K} opens with the number {v}.",
        "To open {k}, turn the dial to {v}.",
        "On the dial of {k} one must choose {v}.",
        "Somebody had written down that the code of {k} was {v}.",
        "{K} can only be opened with the code {v}."], [
        "What is the code of {k}?",
        "Which number opens {k}?",
        "With which code can one open {k}?"]),
    "hidden": (thing, lambda r: r.choice(PREP) + " the " + r.choice(PLACE), [
        "{K} was hidden {v}.",
        "Somebody hid {k} {v}.",
        "{K} lies {v}.",
        "In the night they buried {k} {v}.",
        "{K} was found {v}.",
        "If you want {k} you must look {v}.",
        "They had put {k} {v}, where nobody would look."], [
        "Where was {k} hidden?",
        "Where is {k}?",
        "Where must one look for {k}?"]),
    "born": (person, pick(TOWN), [
        "{K} was born in {v}.",
        "{K} came into the world at {v}.",
        "The birthplace of {k} was {v}.",
        "{K} first saw the light in {v}.",
        "The place where {k} was born is {v}."], [
        "Where was {k} born?",
        "In which town was {k} born?",
        "What is the birthplace of {k}?"]),
    "trade": (person, pick(TRADE), [
        "{K} works as {a} {v}.",
        "By trade {k} was {a} {v}.",
        "{K} had been {a} {v} for many years.",
        "{K} earned a living as {a} {v}.",
        "Everyone knew that {k} was {a} {v}."], [
        "What is the trade of {k}?",
        "What does {k} work as?",
        "How did {k} earn a living?"]),
    "pet": (person, lambda r: r.choice(COLOUR) + " " + r.choice(ANIMAL), [
        "{K} keeps {a} {v} as a pet.",
        "The pet of {k} is {a} {v}.",
        "{K} was never seen without {a} {v}.",
        "In the house of {k} lived {a} {v}.",
        "{K} had bought {a} {v} at the fair."], [
        "Which animal does {k} keep?",
        "What is the pet of {k}?",
        "What kind of animal lives with {k}?"]),
    "flower": (person, pick(FLOWER), [
        "The favourite flower of {k} is the {v}.",
        "{K} loved the {v} above all other flowers.",
        "Of all flowers {k} liked the {v} best.",
        "No flower pleased {k} as much as the {v}."], [
        "What is the favourite flower of {k}?",
        "Which flower did {k} like best?",
        "Which flower pleased {k} most?"]),
    "dish": (person, pick(DISH), [
        "{K} always has {v} for dinner.",
        "The favourite dish of {k} is {v}.",
        "{K} would eat nothing but {v}.",
        "For supper {k} asked for {v}.",
        "Nothing tasted so good to {k} as {v}."], [
        "What is the favourite dish of {k}?",
        "What does {k} like to eat?",
        "What did {k} ask for?"]),
    "cargo": (ship, pick(CARGO), [
        "{K} carries a cargo of {v}.",
        "{K} was loaded with {v}.",
        "In the hold of {k} there was nothing but {v}.",
        "They filled {k} with {v} and set sail.",
        "{K} came into harbour with a load of {v}."], [
        "What is the cargo of {k}?",
        "What does {k} carry?",
        "With what was {k} loaded?"]),
    "debt": (person, number(20, 1000), [
        "{K} owes the bank {v} pounds.",
        "The debt of {k} amounts to {v} pounds.",
        "{K} had borrowed {v} pounds.",
        "It was known that {k} owed {v} pounds."], [
        "How many pounds does {k} owe?",
        "How large is the debt of {k} in pounds?",
        "How many pounds did {k} borrow?"]),
    "keeper": (room, full_name, [
        "The key of {k} is kept by {v}.",
        "For the key of {k} one must ask {v}.",
        "The master of {k} is {v}.",
        "The key of {k} belongs to {v} alone.",
        "They gave the key of {k} to {v}."], [
        "Who keeps the key of {k}?",
        "Who has the key of {k}?",
        "To whom was the key of {k} given?"]),
    "giver": (thing, full_name, [
        "{K} belongs to {v}.",
        "The owner of {k} is {v}.",
        "{K} was made by {v}.",
        "{K} was brought by {v}.",
        "{K} had long ago been bought by {v}."], [
        "Who is the owner of {k}?",
        "To whom does {k} belong?",
        "Whose is {k}?"]),
    "meeting": (person, pick(TOWN), [
        "{K} will be waiting in {v}.",
        "{K} has gone to {v}.",
        "They are to meet {k} in {v}.",
        "{K} took the coach to {v}.",
        "{K} was last seen in {v}."], [
        "Where will {k} be waiting?",
        "To which town has {k} gone?",
        "Where can one find {k} now?"]),
    "age": (thing, number(1000, 1900), [
        "{K} was made in the year {v}.",
        "{K} has the year {v} written on it.",
        "{K} bears the date {v}.",
        "On {k} one could read the year {v}."], [
        "In which year was {k} made?",
        "Which year is written on {k}?",
        "Which date does {k} bear?"]),
}


def cap(s):
    return s[:1].upper() + s[1:]


def heldout(kind, si, qi, key):
    """True for the one combination in eight that training never sees."""
    return zlib.crc32(f"{kind}/{si}/{qi}/{key}".encode()) % 8 == 0


class Fact:
    __slots__ = ("kind", "key", "value", "si", "qi")

    def __init__(self, kind, key, value, si, qi):
        self.kind, self.key, self.value, self.si, self.qi = kind, key, value, si, qi

    def statement(self):
        return KINDS[self.kind][2][self.si].format(
            k=self.key, K=cap(self.key), v=self.value, a="an" if self.value[0] in "aeio" else "a")

    def question(self):
        return KINDS[self.kind][3][self.qi].format(k=self.key)


def sample_facts(r, n, want_heldout=False):
    """n facts of few kinds; keys and values are unique within a kind, so every question has one answer.

    With want_heldout all come from the held-out combinations, otherwise none does.
    """
    kinds = r.sample(list(KINDS), r.choice((1, 2, 3, 4)))
    out, used = [], set()
    while len(out) < n:
        kind = r.choice(kinds)
        key_of, value_of, statements, questions = KINDS[kind]
        key, value = key_of(r), value_of(r)
        if out and r.random() < 0.3:          # a near twin: shares one word of the key with an earlier fact
            o = r.choice(out)
            if o.kind == kind:
                a, b = o.key.rsplit(" ", 1), key.rsplit(" ", 1)
                key = a[0] + " " + b[1] if r.random() < 0.5 else b[0] + " " + a[1]
        if (kind, key) in used or (kind, value) in used or ("key", key) in used:
            continue
        si, qi = r.randrange(len(statements)), r.randrange(len(questions))
        if heldout(kind, si, qi, key) != want_heldout:
            continue
        used.update(((kind, key), (kind, value), ("key", key)))
        out.append(Fact(kind, key, value, si, qi))
    return out
