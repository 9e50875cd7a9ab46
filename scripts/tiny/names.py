"""Names, places and things of the wider text: syllables of many languages, so that no spelling is rare enough to be guessed.

A name is put together from the beginnings, vowels, ends and suffixes of one of fourteen groups of languages, in one of some
twenty shapes (particles, double names, prefixes with an apostrophe). Things are one to three words, one of which may be made
up. Every made-up or real word belongs to one of the two parts of `words`, as there.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from scripts.tiny import words

PLAIN_SHARE = 0.5
"""Share of the vowels that are plain ones, whatever the language."""


@dataclass(frozen=True, slots=True)
class Sounds:
    """How words of a group of languages are put together: text lists, split at spaces; `-` stands for nothing.

    Args:
        onsets: Beginnings of syllables.
        vowels: Vowels, often ones more than once.
        codas: Ends of syllables.
        surnames: Ends of last names.
        places: Ends of places.
    """

    onsets: str
    vowels: str
    codas: str
    surnames: str
    places: str


SOUNDS = (
    Sounds(
        "b c d f g l m n p r s t v z br cr tr ch gl gn qu sc sp st -",
        "a e i o u a e i o ia io ie ua à é ì ò",
        "- - - - n r l s",
        "ini etti ello ucci ano aro one ardi ese otti",
        "ina ona eto ate ello ara enza ano ia",
    ),
    Sounds(
        "b c d f g j l m n p r s t v z br ch cl cr gu ll rr tr qu ñ -",
        "a e i o u a e i o ia ie ue á é í ó ú",
        "- - - - n r l s z",
        "ez ero ales ado illa eda osa uez ares ino",
        "illo era ada eros alba uela ón ares uca",
    ),
    Sounds(
        "b c d f g j l m n p r s t v br ch cl dr fl gr pl tr vr -",
        "a e i o u a e i ou eau ai oi é è ê eu",
        "- - - n r l t s x",
        "eau ier ard et ot oux elle ois ain y",
        "ville ac y ières ans ères oux eux ogne",
    ),
    Sounds(
        "b c d f g j l m n p r s t v x br ch cr lh nh pr tr qu -",
        "a e i o u a e o ã õ á ç é ei ou ão",
        "- - - - n r l s",
        "eira inho ares ais ães oso ato ino elo",
        "im ães ais ada eira ão osa ória",
    ),
    Sounds(
        "b d f g h k l m n p r s t w z sch br bl dr fr gr kl kr schn st tr pf -",
        "a e i o u a e i ä ö ü ei au ie eu",
        "- n r l t ch ck ng rt nd ss lz tz",
        "mann er auer meier bach stein hofer ing ke sen haus feld",
        "burg heim stadt dorf ingen au berg bach feld hausen",
    ),
    Sounds(
        "b d f g h j k l m n p r s t v w z br dr gr kr sch st vl zw -",
        "a e i o u aa ee oo ij oe ui eu ie ou",
        "- n r l t k s rd nd ng cht",
        "stra ma sma inga huis kamp veld man sen ers oven",
        "dam wijk drecht veen hoven gen lo loo zand",
    ),
    Sounds(
        "b d f g h j k l m n p r s t v br dr fr gj hj kj sk sj st sv tr þ -",
        "a e i o u y å ä ö ø æ á í ó ei au",
        "- n r l t k g nn rg nd lm st",
        "sson sdóttir sen qvist berg ström lund dahl gren stad",
        "vik stad ø by havn sund fjord köping ås heim",
    ),
    Sounds(
        "b d g h j k l m n p r s t v y ll kk pp -",
        "a e i o u ä ö y aa ee ii uu ää uo ie yö õ",
        "- - - n s l t r",
        "nen la lä nen ki ja maa salo niemi mäe",
        "la järvi niemi koski maa salmi pere vere lä",
    ),
    Sounds(
        "b c d g h j k l m n p r s t v w z br cz dr gr kr pr sz rz sl zw ž š č ć ł ń dž -",
        "a e i o u a e i o y ą ę ó ě ia ie",
        "- - n k r l s t sz cz w ń ł v",
        "ski cki owicz ak ek ová ić ović enko uk czyk ský ov eva",
        "ów ice owo sk ec nica grad ín any iec ovo",
    ),
    Sounds(
        "b cs d f g gy h j k l m n ny p r s sz t v z c ț ș ğ ç ş d k y -",
        "a e i o u á é í ó ö ő ü ű ı ă â ea oa",
        "- - n r l k s t ş z m",
        "escu oglu yi ffy án ulu eanu demir kaya ács dağ",
        "ești eni ova lar köy hisar vár háza kale pınar",
    ),
    Sounds(
        "b ch d f g h j k l m n p q r s sh t w x y z zh c ts ng -",
        "a e i o u ai ao ei ia ian iang iao ing ong ou uan ui un üe",
        "- - - - n ng",
        "- - - n ng o u",
        "zhou shan yang jing hai du ning an",
    ),
    Sounds(
        "b ch d f g h j k m n r s sh t w y z ky ry ts k m t n -",
        "a e i o u a i u o ō ū ei",
        "- - - - - n",
        "moto mura yama kawa da naka saki hara guchi shima",
        "saki oka yama gawa hama moto mi bashi",
    ),
    Sounds(
        "b d dh f gh h j k kh l m n q r s sh t th y z b bh ch v p dr pr -",
        "a a a i i u aa ee ai au e o i u",
        "- - n r m l d sh t h",
        "wal kar nathan deep i ani zadeh oui vi pour jee ra",
        "abad pur nagar stan garh pet ur iyah an ra",
    ),
    Sounds(
        "b ch d f g h k l m n p s t w y z mb nd ng nk gb kp mw ny ts dl r -",
        "a e i o u a e i o u a ọ ẹ á ú",
        "- - - - - n",
        "we la ba nde mba yi le si ko nga wu",
        "si ndi go ru ana ani ba so vu",
    ),
)
_PARTICLES = words.by_bar(
    "de|van|von|van der|van den|van de|da|do|dos|del|della|de la|di|du|le|la|el|al|af|ter|bin|ibn|ben|zu|y|av|degli|dalla"
)
_PREFIXES = ("O'", "O’", "D'", "Mc", "Mac", "Fitz", "N'", "L'", "al-", "El-", "St. ")
MODIFIERS = words.by_space(
    "kitchen garden office desk wall floor table coffee tea wine beer water bath shower bed guest baby dog cat bird fish horse "
    "car truck bike boat camping hiking running football tennis golf winter summer rain snow school art music photo video party "
    "wedding birthday travel hand head leg shoulder foot hair face kids sports safety fire alarm wood metal stone marble bamboo "
    "linen silk velvet wool rubber iron brass bronze tin clay crystal wax paper card board plastic picture roof window door desk "
    "bread cake cheese rice soup salad egg fruit spice pepper salt sugar honey ice storage tool power laser solar wind gas oil "
    "battery phone laptop camera game book news cloud data street market harbour farm barn forest mountain river beach pool"
)
THINGS = words.by_space(
    "book card bottle jar box tray stand rack holder cover case mat pad pot cloth towel sheet robe apron cap vest sweater "
    "trousers shorts slipper stocking glove mitten purse trolley cart wagon pram scooter trailer canoe paddle rope hook chain "
    "nail screw bolt nut hinge handle knob tap sink tub basin mop sponge soap shampoo cream perfume brush comb razor scissors "
    "needle thread button ribbon zip bead stamp envelope poster postcard print sign label sticker album frame canvas chalk "
    "crayon eraser ruler globe whiteboard projector speaker amplifier cable adapter charger plug socket timer remote drone "
    "robot puzzle dice chess kite swing slide ball bat puck skate ski sled snowboard surfboard helmet whistle trophy medal flag "
    "banner balloon lantern lamp bulb torch grill stove oven kettle teapot ladle whisk grater peeler sieve funnel tin lid rack "
    "freezer fan heater boiler radiator pump hose sprinkler shovel spade fork seed bulb plant tree cactus fence gate bench "
    "hammock parasol shed greenhouse barrel crate pallet sack bin cage aquarium leash collar feeder saddle bridle tile brick "
    "plank beam panel pipe cork plate dish goblet saucer spoon tongs napkin tablecloth doormat rug mattress quilt cushion "
    "divan recliner footstool dresser bookshelf bookcase locker safe mailbox doorbell thermometer barometer microscope lens "
    "tripod binoculars guitar ukulele cello harp organ flute trombone bagpipe harmonica cymbal tambourine metronome"
)
LOOKS = words.by_space(
    "new old big little tiny huge round square flat tall thick thin plain striped spotted checked painted carved woven knitted "
    "hand-made second-hand heavy-duty rust-free extra-large stackable foldable inflatable rechargeable cordless magnetic scented "
    "red green blue yellow white black grey brown pink purple orange turquoise beige navy golden silver silent cheap fancy "
    "rustic antique modern deluxe mini giant double triple waterproof fireproof unbreakable reusable organic vegan refurbished "
    "3-piece 2-metre 500-gram A4 XL left-handed"
)


def _titled(word: str) -> str:
    return word[:1].upper() + word[1:]


class NameSource(words.WordSource):
    """Draws names, places and things of the wider text from one part of the words.

    Args:
        held_out: The part.
    """

    def sounding(self, rng: random.Random, sounds: Sounds, syllables: int, end: str = "") -> str:
        """Return a capitalised word of `syllables` syllables and an end, which belongs to this part."""
        onsets, vowels, codas = sounds.onsets.split(), sounds.vowels.split(), sounds.codas.split()
        while True:
            word = "".join(
                rng.choice(onsets) + rng.choice("aeiou" if rng.random() < PLAIN_SHARE else vowels) + rng.choice(codas)
                for _ in range(syllables)
            )
            word = (word + end).replace("-", "")
            if len(word) > 1 and words.is_held_out(word) == self.held_out and not words.is_rude(word):
                return _titled(word)

    def _first_name(self, rng: random.Random, sounds: Sounds) -> str:
        if rng.random() < 0.35:
            return rng.choice(self._first)
        return self.sounding(rng, sounds, rng.choice((1, 2, 2, 2, 3)))

    def _last_name(self, rng: random.Random, sounds: Sounds) -> str:
        if rng.random() < 0.25:
            return rng.choice(self._last)
        end = rng.choice(sounds.surnames.split()).replace("-", "") if rng.random() < 0.65 else ""
        return self.sounding(rng, sounds, rng.choice((1, 1, 2, 2, 3, 3 if rng.random() < 0.6 else 4)), end)

    def person(self, rng: random.Random) -> str:
        """Return a person's name in one of many shapes; mostly a first and a last name of one group of languages."""
        sounds = rng.choice(SOUNDS)
        first, last = self._first_name(rng, sounds), self._last_name(rng, sounds)
        shapes: tuple[tuple[float, Callable[[], str]], ...] = (
            (52, lambda: f"{first} {last}"),
            (9, lambda: first),
            (10, lambda: f"{first} {rng.choice(_PARTICLES)} {last}"),
            (2, lambda: f"{first} {_titled(rng.choice(_PARTICLES))} {last}"),
            (6, lambda: f"{first} {last}-{self._last_name(rng, rng.choice(SOUNDS))}"),
            (6, lambda: f"{first} {rng.choice(_PREFIXES)}{last}"),
            (4, lambda: f"{first}-{self._first_name(rng, sounds)} {last}"),
            (5, lambda: f"{first} {self._last_name(rng, sounds)} {last}"),
            (2, lambda: f"{first} {self._first_name(rng, sounds)} {rng.choice(_PARTICLES)} {last}"),
            (2, lambda: f"{first} {rng.choice('ABCDEFGHIJKLMNOPRSTVWZ')}. {last}"),
            (2, lambda: f"{first[0]}. {last}"),
        )
        return rng.choices([make for _, make in shapes], [weight for weight, _ in shapes])[0]()

    def city(self, rng: random.Random) -> str:
        """Return a place: real, or made up of the syllables of one group of languages."""
        if rng.random() < 0.3:
            return super().city(rng)
        sounds = rng.choice(SOUNDS)
        end = rng.choice(sounds.places.split()) if rng.random() < 0.6 else ""
        return self.sounding(rng, sounds, rng.choice((1, 2, 2, 3)), end)

    def item(self, rng: random.Random, plural: bool) -> str:
        """Return a thing of one to three words; the last one is plural where asked."""
        known = rng.random()
        if known < 0.45:
            noun = rng.choice(THINGS)
        elif known < 0.85:
            noun = rng.choice(self._nouns)
        else:
            noun = self.made_up(rng, rng.choice((1, 2, 2, 3)))
        if plural:
            noun = words.plural_of(noun)
        modifier = rng.choice(MODIFIERS) if rng.random() < 0.85 else self.made_up(rng, rng.choice((1, 2, 2)))
        looks = rng.choice((*LOOKS, *words.ADJECTIVES))
        shape = rng.random()
        if shape < 0.22:
            return noun
        if shape < 0.55:
            return f"{modifier} {noun}"
        if shape < 0.75:
            return f"{looks} {noun}"
        if shape < 0.95:
            return f"{looks} {modifier} {noun}"
        return f"{_titled(self.made_up(rng, 2))} {modifier} {noun}"
