"""Messages that are none of the kinds: small talk, news, riddles, code, letters by chance; some name people, places and sums."""

import random

from scripts.tiny import styles, words


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


SENTENCES = _lines("""
(haha|omg|wow|hmm|ugh|yay|nope|yes|no|ok|okay|sure|thanks|bye|hello|hi|test|what|why not|really|cool|nice)(!|?|.|!!|...|)
(hello|hi|hey|good morning|good night|good evening)( {noise_person}| everyone| there|)(!|.|,|)
(that|this) (is|was) (so |really |quite |) (sad|silly|great|boring|strange|cool|sweet|true|wrong|amazing|terrible)(!|.|...|)
(What|Who|Where) (is|was) (the capital of|the mayor of|the best café in|the oldest street in|the weather in) {noise_city}?
(How|Why|When) (do|does|did) (birds|cats|people|the moon|my neighbour|trees|computers|fish) (sleep|sing|fall|move|grow|dream|learn)(?|.| at night?)
(Which|What) (bus|train|road|bird|star|number|song) (goes to {noise_city}|is that|do you like best|comes after {noise_number})?
(Can|Could) (someone|anybody|you|one of you) (help me with my homework|tell me the time|feed the cat|open the window|explain this film|pick up {noise_person})?
(My|Our|The|Your) (cat|dog|baby|neighbour|sister|teacher|horse|parrot|uncle|team) (slept|sang|danced|cried|won|lost|jumped|ran away|sat) (all day|in the garden|on the sofa|on the roof|again|last night|in {noise_city})(.|!|)
(Happy|Merry) (new year|Christmas|Easter|holidays|Sunday)(,| dear) {noise_person}(!|!!|.) (We love you|See you soon|Have a great day|Cheers|We fly home on {noise_date})(!|.|)
(Congratulations|Well done|Get well soon|Good luck|Safe travels|Sweet dreams|Welcome back|Rest in peace)(, {noise_person}|)(!|.|)
(The|Your) (battery|backup|download|update|phone|disk) (is|was) (full|at {noise_number} percent|done|ready|stopped after {noise_number} files)(.|!|, {noise_number} left.|)
(The|A|An old|One) (river|mountain|forest|train|village|lake|tower|bridge|wind|garden|sea|night) (was|is|lay|seemed) (silent|cold|dark|far away|empty|green|beautiful|endless)(.|, and nobody spoke.| in the evening light.| from above.)
(The|An old|A young|One|Some) (fisherman|fox|king|soldier|girl|wizard|bear|farmer|queen|stranger) (walked|dreamed|wept|laughed|hid|sang) (by|under|behind|near|across) the (door|tree|water|hill|wall|stars|fire|gate|field)(.|, alone.| until dawn.| and said nothing.)
(It|It all) (started|began|ended) (in {noise_city}|on {noise_date}|with a letter|with {noise_number} {noise_goods}|one night in May|long ago)(.|...|, they say.)
(Mix|Stir|Boil|Bake|Fry|Chop|Add|Peel) (the|two|some|{noise_number} grams of) (eggs|flour|sugar|onions|rice|potatoes|butter|salt|apples|beans) (for {noise_number} minutes|slowly|in a pan|with milk|and serve|until golden)(.|!|)
{noise_person} (won|lost|scored|ran|played|fell) (the race|the match|{noise_number} times|twice|in {noise_city}|yesterday|at the end)(.|!|)
{noise_city} (beat|lost to|drew with|plays) {noise_city} {noise_number}:{noise_number}(.|!| on Sunday.|)
(Breaking|News|Sport|Weather|Traffic)(:| from {noise_city}:) (rain|snow|a storm|a strike|an election|fog|a jam|a record) (in {noise_city}|expected|since this morning|over the weekend|again)(.|)
(The film|The book|This song|The game|That show|The play) (by {noise_person} |from {noise_date} |) (is|was) (great|far too long|a waste of time|the best ever|beautiful|dull|about love)(.|!|)
(I|We) (love|hate|miss|saw|remember|dreamed of|drew|painted) (you|the sea|{noise_city}|summer|my school|{noise_person}|this town|the old days|her)(.|!| so much.| again.|...)
(I|We) (went|drove|flew|walked|moved|cycled) to {noise_city} (with {noise_person}|on {noise_date}|last year|by train|to see the sea|for fun)(.|!|)
(Are|Were) (you|they|we) (awake|home|coming tonight|free for dinner|serious|ok|still there|in {noise_city})?
(Call|Text|Ring|Ping) me (back|later|tomorrow|when you are home|tonight)(.|!|, {noise_person}.|)
(Lunch|Dinner|Coffee|Cinema|Beer|Football|A walk) (at {noise_number}|tonight|later|tomorrow|with {noise_person})?
(1|2|3|one|two), (2|two), (3|three)(...|.|, test, test.|, go!)
{noise_number} (+|-|*|/|times|plus|minus) {noise_number} (=|is|equals) (?|{noise_number}|what?)
(def|function|print|return|import|select|SELECT|for|if|while) {noise_word}( x| {noise_word}:| * from {noise_word}| = {noise_number};|: pass)
(error|warning|fatal|Exception)(:| {noise_number}:) (file|key|host|user|module) '{noise_word}' (not found|missing|refused|unknown|is invalid)
{noise_word} {noise_word}( {noise_word}| {noise_number}|)
{noise_word}{noise_word}( {noise_word}|)
{noise_number} {noise_number}( {noise_number}|)
{noise_word}
{noise_number}
{noise_ref}
(Lorem ipsum dolor sit amet|The quick brown fox jumps over the lazy dog|To be or not to be|Once upon a time|Row, row, row your boat)(.|, {noise_word}.|...|)
(You have|You've) (won|been chosen|one new message|{noise_number} new followers|a friend request from {noise_person})(!|.|!!!)
(Click|Vote|Sign up|Subscribe|Register|Follow us) (here|now|today|for free)(!|.|, it is free.|) (http|www.){noise_word}.com
(Roses are red|Violets are blue|Twinkle twinkle|Knock knock|Why did the chicken cross the road)(.|?|, {noise_person}.|...)
(My|The) (flat|car|phone|bike) is for (rent|swap|free) in {noise_city}(.|!|)
(The|Our) (library|pool|museum|park|bus {noise_number}|office) (is|will be) (closed|open|late|full|renamed|quiet) (on {noise_date}|today|until {noise_time}|in winter|in {noise_city})(.|!|)
(Remember|Don't forget|Note to self)(:| to) (water the plants|buy milk|feed {noise_person}'s cat|breathe|close the gate|call mum|learn {noise_number} words)(.|!|)
(Is|Was) (it|there) (raining|snowing|cold|a bus|a party|a doctor|anybody) (in {noise_city}|at your place|there|tonight)?
(Der Hund schläft|Il pleut sur la ville|Hoy hace mucho calor|Oggi è domenica|Wir sehen uns morgen|Je ne sais pas|No lo sé|Até amanhã|Hej då)(.|!|, {noise_person}.|)
(Once|Every day|At {noise_time}|In the evening|In {noise_city}|Long ago) (the bell rings|we sing|nobody speaks|a man fell in love|the lights go out|there lived a dragon)(.|!|)
(Tell me|Sing|Write|Give me|Explain) (a joke|a story|a poem|a song|a riddle|physics|something nice)( about {noise_city}| about a {noise_noun}| with {noise_person} in it|)(.|!|, please.|)
(I think|I guess|They say|Some say|Maybe) (the {noise_noun} is a myth|time flies|love is blind|he lied|{noise_person} was right|money cannot buy sleep)(.|!|...|)
(The|This|A|My) {noise_noun} (is|was|looks|sounds|tastes) (lovely|odd|older than me|like {noise_city}|blue|haunted|a gift from {noise_person})(.|!|)
""")


def other_text(rng: random.Random, surface: dict[str, str], source: words.WordSource) -> str:
    """Return a message that is none of the kinds, of one sentence to five.

    Args:
        rng: Where it is drawn from.
        surface: Spellings of `noise_...` slots; those that are drawn anew for each place are made here.
        source: Of the words.
    """
    if rng.random() < 0.04:
        return "".join(styles.emoji(rng) for _ in range(rng.randint(1, 3)))
    sentences = []
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 4, 5))):
        template = styles.expanded(rng, rng.choice(SENTENCES))
        drawn = {
            "noise_number": str(rng.randint(0, 10 ** rng.randint(1, 4))),
            "noise_word": source.made_up(rng, rng.choice((1, 2, 3))) if rng.random() < 0.6 else _keys(rng),
            "noise_noun": source.item(rng, plural=False),
            "noise_time": f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}",
        }
        if rng.random() < 0.5:
            drawn |= {"noise_person": source.person(rng), "noise_city": source.city(rng)}
        sentences.append(template.format_map({**surface, **drawn}))
    return rng.choice((" ", " ", " ", "\n")).join(sentences)


def _keys(rng: random.Random) -> str:
    row = rng.choice(("qwertyuiop", "asdfghjkl", "zxcvbnm", "abcdefghijklmnopqrstuvwxyz"))
    at = rng.randrange(len(row) - 2)
    text = row[at : at + rng.randint(2, 7)] if rng.random() < 0.5 else "".join(rng.choices(row, k=rng.randint(2, 9)))
    return text if not words.is_rude(text) else "abc"
