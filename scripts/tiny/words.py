"""Words of the training corpus: real names and places, made-up ones, things and jobs, split into training and held-out halves.

A word belongs to the held-out part when a hash of its letters says so, wherever it comes from: a real list or random
syllables. So the two parts are disjoint for every seed, and a later addition to a list moves no other word.
"""

import hashlib
import random
import re
from collections.abc import Sequence

HELD_OUT_SHARE = 6
"""One word in this many is held out."""


def by_space(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


def by_bar(text: str) -> list[str]:
    """Return the parts of a text between bars."""
    return text.replace("\n", "").split("|")


FIRST_NAMES = by_space("""Ana Luis Maria John Emma Noah Olivia Liam Sofia Lucas Mia Hugo Chloe Omar Fatima Wei Yuki Ravi Priya Ivan
Olga Pedro Lena Karl Anna Peter Laura Mark Julia David Sarah Tom Alice Ben Clara Daniel Eva Felix Grace Henry Ines Jack
Katja Leo Marta Nina Oscar Paula Quentin Rosa Samuel Tara Ugo Vera Walter Xenia Yara Zoe Ahmed Bianca Carlos Dmitri Elena
Farid Gita Hassan Ingrid Jamal Kenji Leila Mateo Nadia Ole Petra Rahul Svetlana Tariq Ulrike Viktor Wanda Ximena Yusuf
Zainab Arthur Beatriz Cedric Dorothy Emil Freya Gustav Helena Isaac Joana Kofi Lars Miguel Niamh Otto Pilar Rafael Sigrid
Thomas Ursula Valentina William Agnes Boris Camille Diego Esther Frank Giulia Harold Irene Jonas Kateryna Lorenzo Magda
Nils Oksana Patrick Renata Stefan Tatiana Ulf Veronica Wendy Adam Brigitte Claudio Denise Erik Fiona George Hannah Igor
Jasmin Kevin Louise Martin Natalie Oliver Philippa Robert Simone Timo Victoria Zeynep Amara Bjarne Chidi Deepa Ewa Fabio
Goran Hiroshi Ilse Jorge Keiko Lucia Manuel Noor Pavel Ruth Sven Theo Vikram Yan Zuzana André Zoë José Renée Søren Jürgen
Łukasz Núria Óscar Chloé Mónica Åsa Jean Marie Paul Anne Jean-Luc Anne-Marie""")

LAST_NAMES = by_space("""Smith Garcia Novak Tanaka Patel Kim Muller Rossi Silva Ivanov Jensen Cohen Brown Lopez Dubois Nowak Sato
Singh Lee Haas Johnson Martin Bernard Schmidt Fischer Weber Meyer Wagner Becker Hoffmann Keller Costa Santos Ferreira
Oliveira Pereira Almeida Moreau Laurent Simon Michel Lefevre Roux Ricci Bruno Conti Greco Esposito Romano Kowalski Wozniak
Mazur Horvat Kovacs Nagy Szabo Popescu Ionescu Petrov Smirnov Volkov Larsen Hansen Nilsen Berg Lund Dahl Lindqvist Virtanen
Korhonen Okafor Mensah Diallo Haddad Khan Rahman Sharma Gupta Mehta Chen Wang Liu Zhang Nguyen Tran Park Choi Suzuki
Yamamoto Kobayashi Walker Turner Hughes Murphy Kelly Byrne Campbell Stewart Fraser Cooper Bailey Ward Foster Bennett Gray
Price Russell Griffin Hayes Myers Ford Hamilton Graham Sullivan Wallace Woods Cole West Jordan Owens Reynolds Fisher Ellis
Harrison Gibson Marsh Field Stone Rivers Banks Winters Lane Morales Ortega Vargas Castro Rojas Mendoza Aguilar Vega Reyes
Fuentes Navarro Molina Serrano Blanco Iglesias Janssen Bakker Visser Smit Peeters Maes Claes Dupont Lambert Fontaine
Chevalier Garnier Girard Müller Núñez Peña Gonçalves Sørensen Øverland Šimić Dvořák Nový Kılıç Yılmaz O'Brien O'Connor
O'Neill D'Angelo McDonald MacLeod Smith-Jones Lloyd-Davis""")

CITIES = by_bar("""Lisbon|Paris|Berlin|Madrid|Tokyo|Oslo|Rome|Vienna|Prague|Dublin|Boston|Denver|Austin|Quito|Lima|Cairo|Delhi|
Seoul|Perth|Nairobi|London|Porto|Lyon|Nice|Hamburg|Munich|Cologne|Dresden|Bremen|Milan|Turin|Naples|Bologna|Verona|Seville|
Valencia|Bilbao|Granada|Toledo|Warsaw|Krakow|Gdansk|Lublin|Budapest|Debrecen|Bucharest|Sofia|Varna|Athens|Patras|Zagreb|
Split|Ljubljana|Maribor|Bratislava|Brno|Ostrava|Graz|Linz|Salzburg|Zurich|Geneva|Basel|Bern|Brussels|Antwerp|Ghent|Bruges|
Amsterdam|Utrecht|Delft|Leiden|Copenhagen|Aarhus|Odense|Stockholm|Uppsala|Gothenburg|Helsinki|Tampere|Turku|Bergen|
Trondheim|Riga|Tallinn|Vilnius|Kaunas|Kyiv|Lviv|Odesa|Tbilisi|Yerevan|Ankara|Izmir|Bursa|Haifa|Amman|Doha|Dubai|Muscat|
Karachi|Lahore|Mumbai|Pune|Chennai|Kolkata|Dhaka|Colombo|Hanoi|Bangkok|Manila|Jakarta|Osaka|Kyoto|Nagoya|Sapporo|Busan|
Taipei|Shanghai|Beijing|Wuhan|Sydney|Brisbane|Adelaide|Darwin|Auckland|Wellington|Chicago|Seattle|Portland|Dallas|Houston|
Phoenix|Atlanta|Miami|Orlando|Detroit|Cleveland|Nashville|Memphis|Omaha|Tucson|Fresno|Toronto|Ottawa|Montreal|Halifax|
Calgary|Bogota|Medellin|Santiago|Valparaiso|Rosario|Cordoba|Montevideo|Asuncion|Recife|Salvador|Curitiba|Caracas|Lagos|
Accra|Abuja|Kampala|Kigali|Lusaka|Harare|Durban|Tunis|Rabat|Fez|Algiers|Dakar|Bristol|Leeds|York|Bath|Oxford|Cambridge|
Cardiff|Glasgow|Edinburgh|Belfast|Cork|Galway|Malmö|Århus|Zürich|Córdoba|Málaga|São Paulo|Bogotá|Łódź|Brașov|New York|
New Orleans|San Diego|San Juan|Los Angeles|Las Vegas|Santa Cruz|Rio de Janeiro|Buenos Aires|Cape Town|Kuala Lumpur|
Hong Kong|Tel Aviv|Salt Lake City|St. Gallen|The Hague|Aix-en-Provence|Stratford-upon-Avon|Bad Homburg|
Port Louis""")

NOUNS = by_space("""kettle lamp chair desk phone camera bicycle jacket guitar printer blender mirror carpet helmet tent clock heater
monitor keyboard backpack table shelf drawer cabinet sofa pillow blanket curtain rug vase bowl plate cup mug glass jug pan
pot knife fork spoon toaster oven fridge freezer fan radio speaker headset microphone cable charger battery tablet laptop
router scanner projector screen mouse drive drill hammer saw wrench screwdriver ladder rope bucket brush broom shovel rake
hose pump valve pipe filter engine tyre wheel pedal saddle basket crate pallet box bag suitcase wallet umbrella scarf glove
hat coat shirt jumper dress skirt boot shoe sandal sock belt watch ring necklace bracelet violin flute piano drum trumpet
notebook pen pencil marker folder stapler calendar map globe atlas puzzle doll kite ball racket net bench swing grill
candle torch lantern compass thermos cooler mattress bed wardrobe stool armchair bookcase easel canvas frame tile brick
plank panel window door lock key bell sensor switch socket bulb magnet lens telescope microscope scale""")

ADJECTIVES = by_space("""wooden steel blue red green black white large small round folding leather cotton silver golden portable
electric solar wireless digital vintage modern heavy light glass ceramic plastic copper oak pine paper woollen outdoor
kitchen garden office travel children's double single long short narrow wide soft hard dark yellow grey brown orange
waterproof insulated adjustable compact""")

COLOURS = by_space("red blue green black white yellow grey brown orange silver purple pink")

ROLES = by_bar("""nurse|driver|cook|welder|teacher|accountant|gardener|electrician|plumber|designer|translator|librarian|
data analyst|software engineer|project manager|sales assistant|office manager|warehouse clerk|lab technician|
bus driver|head chef|night porter|web developer|tax adviser|shop assistant|machine operator|research assistant|
store manager|truck driver|payroll clerk|site engineer|product manager|legal assistant|baker|carpenter|mechanic|
painter|receptionist|security guard|tour guide""")

SKILLS = by_bar("""welding|Python|first aid|bookkeeping|Spanish|German|French|forklift driving|carpentry|photography|Excel|
customer service|English|Polish|cooking|gardening|statistics|typing|negotiation|Java|sewing|Arabic|driving|planning|
copywriting|teaching""")

TOPICS = by_bar("""budget review|sales plan|hiring plan|new website|office move|product launch|safety training|annual report|
supplier contract|holiday schedule|quarterly results|design draft|price list|customer survey|stock check|road map|
marketing campaign|data migration|building permit|press release|travel policy|staff party|roof repair|tax return|
delivery routes|insurance claim|school project|test results|energy audit|trade fair""")

PROBLEMS = by_bar("""cracked screen|broken handle|missing screws|wrong colour|torn cover|dead battery|loose wheel|bent frame|
scratched surface|strange noise|leaking lid|wrong size|faulty switch|missing manual|dented side|burnt plug|stuck drawer|
broken zip|bad smell|flickering light|missing parts|cut cable|rusty hinge|broken glass""")

CARRIERS = by_bar("DHL|UPS|FedEx|GLS|DPD|Hermes|Royal Mail|PostNord|Chronopost|TNT|Correos|Bpost")

COMPANY_ENDINGS = by_bar("""Ltd|GmbH|Inc|Group|& Sons|Logistics|Foods|Systems|Trading|Partners|Design|Motors|Tools|Media|
Consulting|Brothers|Energy|Textiles|AG|SA|Labs|Works|Supplies""")

_ONSETS = by_space("b c d f g h j k l m n p r s t v w z br ch cl dr fr gr kr pl sh st th tr qu y x bl gl sk sp sv tz")
_VOWELS = by_space("a e i o u a e i o u ai ea ou ie ei oo y ö ü é á í ó ã å ø")
_VOWEL_WEIGHTS = [10] * 10 + [3] * 6 + [2] + [0.5] * 9
_CODAS = [""] * 16 + by_space("n n r r s s l l m th ck t k d nd rt x ng sk v z")


_RUDE = re.compile("fuck|fuk|shit|cunt|nig+[aeo]|dick|kock|cock|piss|slut|twat|fag|rape|nazi|puss")


def is_held_out(word: str) -> bool:
    """Return whether `word` belongs to the held-out part, whatever its case."""
    return hashlib.blake2b(word.lower().encode(), digest_size=4).digest()[0] % HELD_OUT_SHARE == 0


def is_rude(word: str) -> bool:
    """Return whether a made-up word holds one that nobody wants to read."""
    return bool(_RUDE.search(word))


def part_of(words: Sequence[str], held_out: bool) -> list[str]:
    """Return the words of one part, in order."""
    return [word for word in words if is_held_out(word) == held_out]


class WordSource:
    """Draws names and places from one part of the words, and things.

    Args:
        held_out: The part.
    """

    def __init__(self, held_out: bool) -> None:
        self.held_out = held_out
        self._first = part_of(FIRST_NAMES, held_out)
        self._last = part_of(LAST_NAMES, held_out)
        self._cities = part_of(CITIES, held_out)
        # Things are ordinary words, the same for all; what a message is about is new by its names and places.
        self._nouns = part_of(NOUNS, held_out=False)

    def made_up(self, rng: random.Random, syllables: int) -> str:
        """Return a lower-case word of random syllables that belongs to this part."""
        while True:
            word = "".join(
                rng.choice(_ONSETS) + rng.choices(_VOWELS, _VOWEL_WEIGHTS)[0] + rng.choice(_CODAS)
                for _ in range(syllables)
            )
            if is_held_out(word) == self.held_out and not is_rude(word):
                return word

    def _name_word(self, rng: random.Random, real: Sequence[str]) -> str:
        if rng.random() < 0.5:
            return rng.choice(real)
        return self.made_up(rng, rng.choice((1, 2, 2, 2, 3))).capitalize()

    def person(self, rng: random.Random) -> str:
        """Return a person's name: mostly two words, now and then a particle, an initial or a double name."""
        first, last = self._name_word(rng, self._first), self._name_word(rng, self._last)
        shape = rng.random()
        if shape < 0.90:
            return f"{first} {last}"
        if shape < 0.92:
            return f"{first} {rng.choice(('de', 'van', 'von', 'van der', 'da', 'el', 'di', 'Mc', 'Ben'))} {last}"
        if shape < 0.94:
            return f"{first} {last}-{self._name_word(rng, self._last)}"
        if shape < 0.96:
            return f"{first} O'{last}"
        if shape < 0.97:
            return f"{first}-{self._name_word(rng, self._first)} {last}"
        if shape < 0.99:
            return f"{first} {rng.choice('ABCDEFGHJKLMNPRSTVW')}. {last}"
        return f"{first} {self._name_word(rng, self._first)} {last}"

    def city(self, rng: random.Random) -> str:
        """Return a place: real or made up, one to three words."""
        if rng.random() < 0.6:
            return rng.choice(self._cities)
        word = self.made_up(rng, rng.choice((1, 2, 2, 3))).capitalize()
        shape = rng.random()
        if shape < 0.88:
            return word
        if shape < 0.96:
            return f"{rng.choice(('New', 'San', 'Port', 'Bad', 'Santa', 'Upper', 'St.', 'Great', 'El', 'Fort'))} {word}"
        return f"{word}{rng.choice(('-on-Sea', ' City', '-sur-Mer', ' Bay', ' Springs', '-West', ' am See'))}"

    def item(self, rng: random.Random, plural: bool) -> str:
        """Return a thing, with an adjective or a model code now and then."""
        noun = rng.choice(self._nouns) if rng.random() < 0.95 else self.made_up(rng, rng.choice((1, 2, 2)))
        if plural:
            noun = plural_of(noun)
        shape = rng.random()
        if shape < 0.5:
            return noun
        if shape < 0.93:
            return f"{rng.choice(ADJECTIVES)} {noun}"
        if shape < 0.96:
            return f"{rng.choice(ADJECTIVES)} {rng.choice(ADJECTIVES)} {noun}"
        return f"{self.made_up(rng, 2).capitalize()} {noun}"

    def company(self, rng: random.Random) -> str:
        """Return a firm's name."""
        word = self._name_word(rng, self._last)
        return f"{word} {rng.choice(COMPANY_ENDINGS)}"


def plural_of(noun: str) -> str:
    """Return the plural of a thing by the usual rules."""
    if noun.endswith(("s", "x", "ch", "sh", "z")):
        return noun + "es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"
