"""Sentences of the wider text, by kind of message: informal, wordy, terse, in any order of words.

Written as in `phrases`, with two marks more: `(this|that|)` stands for one of the alternatives, and a sentence that begins
with `^` or `~` stands at the beginning or at the end of its message. No slot stands inside an alternative.
"""

from scripts.tiny.phrases import FAMILIES, Family


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


GREETINGS = _lines("""
^(Hi|Hello|Hey|Hiya|Howdy|Yo|Heya)(,|!|...|)
^(Hi|Hello|Hey) (there|folks|team|guys|everyone|again|you two|friends)(,|!|)
^Good (morning|evening|afternoon|day)(,|!|.| to you all,)
^Dear (sirs|madam|shop team|colleagues|friends|customer service|sales team|ladies and gentlemen),
^(Dear|Hello|Hi|Hey) {noise_person}(,|!|)
^(Greetings|Salutations|Bonjour|Hallo|Ciao|Servus|Namaste|Hola|Aloha|Moin)(,|!)
^(Sorry to bother you|Sorry to trouble you again|Excuse me|One quick thing|Just a short note|Quick one|So|Ok so|Well|Um hi|Hello hello)(,|:|...|)
""")

CLOSINGS = _lines("""
~(Thanks|Thank you|Thx|Ta|Cheers|Merci|Danke|Gracias|Obrigado|Many thanks)(!|.| a lot!| in advance.| so much!| again.|)
~(Bye|Bye bye|See you|See ya|Take care|Have a good one|All the best|Speak soon|Talk soon|Over and out)(!|.|)
~(Warmly|Sincerely yours|Respectfully|Faithfully|With best regards|Greetings|Rgds|BR)(,|.|)
~Let me know (if that works|what you think|if you need more|please)(.|!|)
~(That's all|That would be all|That is it|Nothing else)(.| for now.| from me.|, really.)
~(Your {noise_company} team|The {noise_company} crew|{noise_company})
""")

STORIES = _lines("""
(It was|It is|What) a pleasure (to meet you|to talk to you|to do business with you) (at the fair|last week|on the phone|in {noise_city}).
(My|Our) (son|daughter|neighbour|boss|aunt|grandmother|cat|dog|accountant|landlord) (thinks|says|believes) (you are the best|you are too expensive|we should stay with you|I write too much).
(We|I) have been (coming to your shop|reading your newsletter|waiting for the bus|living here|running this place) for {noise_number} years.
(The|Our) (café|school|hotel|garage|clinic|library|bakery|club|office|farm|studio) (is growing|opens again soon|was painted last month|has {noise_number} rooms|had a flood in spring).
(Yesterday|Last week|This morning|On Monday|Last summer|A month ago) (I|we) (saw your ad|found your card|walked past your shop|lost my keys|broke my arm|finally finished the roof|had {noise_number} guests).
(You may|You might|Maybe you|Perhaps you) remember (me|us) from {noise_city}.
How (are you|is the family|was your trip to {noise_city}|is {noise_person})?
I (know|understand|am aware) that you are (busy|closed on Sundays|short of staff|moving house).
It (rains|snows|has been hot|is foggy|is very windy) (here|again|in {noise_city}|today)(.|!|, as always.)
{noise_person} (recommended you|sends greetings|is ill today|no longer works here|will be cc'd|gave me your address).
The {noise_goods} from last time (are|is) still (fine|in use|great|in the box).
(Sadly|Luckily|By the way|As you know|To be honest|Between us|Of course|Funny enough), (the lift is broken|the shop next door has closed|we have a new phone|my English is not perfect|I have never done this before).
(Page|Step|Room|Gate|Shelf|Line) {noise_number} (is|was) (wrong|missing|empty|fine|closed).
(Our|My) (order|letter|call|visit|mail) of {noise_date} (was never answered|went well|is settled|can be forgotten).
On {noise_date} (we|I) (were|was) in {noise_city}(.| for a wedding.| on business.)
(No|There is no) need to (call|reply|ring|worry|wrap it|print this).
(Everybody|Nobody|The whole street|My team) (loves|talks about|complains about|forgot) (the new website|the coffee|the parking|your logo).
PS: (say hi to {noise_person}|the bell does not work|our dog is friendly|the door is green|ask for {noise_person}).
Ref {noise_ref}(.| is closed.| has nothing to do with this.)
(Long story short|To cut it short|Now to business|So here is the thing|Let me get to the point)(:|,|...)
I (hope|trust) (you are well|all is well with you|you had a good weekend|this finds you in good health|business is good)(.|!|)
""")

GENERIC: dict[str, tuple[str, ...]] = {
    "person": _lines("""
~{person}
~- {person}
~-- {person}
~— {person}
~/{person}
~(Cheers|Thx|Thanks|Ta|xx|Love|Hugs|Bye|Best|All the best|Warm regards|Greetings|Kind greetings|Take care|Sincerely|Respectfully|Faithfully yours|Rgds|Brgds|BR|Mit Grüßen|Saludos|Cordialement)(,| |:| -| from) {person}
~Signed(,|:|) {person}
~(Written|Sent|Typed) by {person}(.|)
^{person} (here|speaking|writing|on the line|again)(.|!|,|:|)
(This is|It's|Its|It is|I'm|I am|Im|My name is|My name's|Name's|Call me|You are talking to) {person}(.|!|,|)
(My name, by the way, is|My name:|Name:|I go by|For the record, I am|On paper I am) {person}(.|)
The (writer of this|customer) is {person}.
(You know me|You may remember me), {person}.
"""),
    "city": _lines("""
(We're|We are|I'm|I am|Im) (in|based in|living in|over in|at home in|down in|from|located in) {city}(.|!|, by the way.|)
(Our|My|The) (place|shop|house|office|flat|farm|hotel|warehouse|door|address) is in {city}(.|)
(Greetings|Hello|Regards|Sunny greetings) from {city}(!|.)
(Where|Where to|Place|Location|Town|Loc)(:|?) {city}(.|)
(Here in|In|Over here in) {city} (it is|everything is) (cold|hot|quiet|fine|expensive)(.|)
{city} is where (we are|I live|our place is|it is needed)(.|)
"""),
    "person city": _lines("""
~{person}, {city}
~{person} ({city})
~{person} / {city}
~{person}\\n{city}
~(Cheers|Regards|Best|Greetings|Yours truly|Thx), {person} (from|in|of) {city}
^{person} (from|of|in|out of) {city} here(.|!|,|)
(This is|It's|I'm|I am) {person} (writing|texting) from {city}(.|,|)
(I am called|My name is|The name is) {person}, (living in|at home in|I live in|and I'm from) {city}(.|)
"""),
    "email": _lines("""
(Mail|Mail me at|Write me at|Drop me a line:|Email) {email}(.|)
"""),
    "phone": _lines("""
(Call|Ring|Text|Whatsapp|Cell|Mob) {phone}(.|)
"""),
    "company": _lines("""
(I buy for|This is for|On behalf of|c/o|We at) {company}(.|)
"""),
    "ref": _lines("""
(No|Nr|Number|Ref|ID|Code|File)(.|:|) {ref}(.|)
"""),
    "urgent": _lines("""
(Asap|ASAP|Urgent|Hurry|Quick|Super urgent|It's really urgent)(!|!!|!!!| pls!| please.)
"""),
    "not_urgent": _lines("""
(No hurry|No stress|No rush|Whenever you can|It can wait)(.|!|)
"""),
}

NO_DATE = _lines("""
(Asap|As soon as you can|As soon as possible|The sooner the better|Next week|By Friday|Until the weekend|Soon|Tomorrow, if you can)(.|!| please.|)
We need it (soon|next week|by Friday|tomorrow|before winter|in {noise_number} days)(.|!|)
(There is|We have) no (fixed date|deadline)(.| yet.)
""")

_GIVE = "(send|send me|send us|ship|ship us|get me|get us|reserve|pack|deliver|bring|supply|post|mail us)"
_ASK = "(please|pls|plz|kindly|can you|could you|could you please|can u|would you|may I ask you to|I'd ask you to|be so kind and|do)"
_WISH = (
    "(I'd like|I would like|I want|we want|we'd like|I need|we need|need|I take|we take|I'll take|we'll have|I'll have|give me|"
    "gimme|I am after|we are in need of|could I have|could I get|may I have|can we get|I would love|put me down for|I wanna order|"
    "I order|we order|we hereby order|I'd like to buy|I will buy|let me have|count me in for|book me)"
)

_ORDER = (
    _lines(f"""
{_ASK} {_GIVE} {{goods}}(.|!|?|)
{_WISH} {{goods}}(.|!|, please.| please| pls|)
{_WISH} {{goods}} (sent|brought|delivered|shipped|taken) to (our house in|our place in|our shop in|us in|my flat in|me in|) {{city}}(.|?|, please.|)
{_WISH} {{goods}} (for|at|at a price of|for a total of) {{money}}(.|, ok?|, as agreed.|)
{{goods}}(, please| pls| please|)(.|!|)
{{goods}} to {{city}}(, please|, pls|)(.|!|)
{{goods}} for {{person}}(, please|)(.|!|)
(So|Ok|Right), {{goods}} it is(.|!)
(Order|New order|My order|Today's order|Our order|The order|To buy|Wanted|We want)(:| is) {{goods}}(.|)
(As agreed|Once more|Same as always|Same procedure as last year)(:|,) {{goods}}(.|, please.|)
{_ASK} {_GIVE} {{goods}} to {{city}} (by|before|until|no later than|not later than|on|for) {{due}}(.|!|?|)
(To|For) {{city}}(:|,| please) {{goods}}(.|, please.|)
(By|Before|Until|On|For) {{due}} {_WISH} {{goods}}(.|)
{{person}} (wants|needs|orders|takes|has ordered|asked for|would like to have|is ordering|bought) {{goods}}(.|!|)
{{person}} (in|from|of) {{city}} (wants|needs|orders|takes|has ordered|would like to have) {{goods}}(.|)
{{money}} for {{goods}}, (deal|agreed|it is a deal|I take it|we take it)(.|!|)
I (was told|heard|read) that you (sell|have|make) {{goods}}. (I take them|We take all|Please send them|Send them to me)(.|!|)
Is it possible to (order|get|receive) {{goods}}?
(Can|Could|May) (I|we) (order|get|have|buy) {{goods}} (from you|at your shop|)(?|, please?)
(Delivery|Destination|Deliver to|Ship to)(:|) {{city}}. (Contents|Goods|What|Order)(:|) {{goods}}(.|)
(My|Our) (wife|husband|boss|school|hotel|team|club) (wants|needs|chose|has chosen) {{goods}}, so (please send them|I order them|that is my order)(.|!|)
"""),
    {
        "money": _lines("""
(I|We) (pay|will pay|can pay|'ll pay|transfer|am paying|are paying) {money}(.| in cash.| by card.| on delivery.| in total.| for all.| as agreed.|)
({money}|{money}) (in total|altogether|all in|is ok|is fine|as agreed|as always|cash|by card|is the price|is the sum|on the invoice)(.|!|)
(Price|Total|Sum|Cost|Costs|Amount|Paying|Budget)(:|) {money}(.|)
(You said|The shop said|The web says|Your list says|We agreed on|It was) {money}(.|)
(The price|The total|All together it) (is|makes|comes to|should be|was) {money}(.|)
"""),
        "due": _lines("""
(Has to|It must|They have to|It should) (arrive|be here|be there|come|reach us) (by|before|on|no later than|not later than|until|latest) {due}(.|!|, please.|)
(Need it|Need them|Needed|I need that|We need this|Wanted|Deadline is|Deadline|Latest|At the latest|Due|Deliver|Delivery|Delivery until|Delivery on) (by|:|on|) {due}(.|!|, ok?|)
(Not|No) later than {due}(,| please|, please|)(.|!|)
(Before|By|On|Until) {due}(, please|, if you can| pls| latest|)(.|!|)
(The party|The wedding|The opening|The move|Everything|It) (is|starts|happens) on {due}, so (be quick|not later please|do not be late)(.|!|)
(There|Here) by {due}(.|)
"""),
        "city": _lines("""
(Deliver|Ship|Send|Bring|Drop) (it|them|everything|all) (off in|to|over to|at) {city}(.|!|, please.|)
(To|Goes to|Going to|Destination|Address|Deliver to|You deliver to|For|Delivery in)(:|) {city}(.|)
{city} is the (address|place|destination)(.|)
"""),
        "money due": _lines("""
{money}, (by|before|on|not later than) {due}(.|!|)
(For|Total) {money}, here (by|on) {due}(.|)
"""),
        "city due": _lines("""
(In|To|At) {city} (by|before|on|until) {due}(.|!|, please.|)
(There by|Arrival) {due}, {city}(.|)
"""),
    },
)

_OPEN = "(still open|not paid|unpaid|overdue|waiting for your payment|lying here|due|to be paid|not settled)"
_INVOICE = (
    _lines(f"""
(Here comes|Here is|Attached is|Please find|You find attached|Find enclosed|Enclosed is|We enclose) (your|our|the) (bill|invoice|statement) for {{goods}}(.|)
(The|Your) (bill|invoice|payment) for {{goods}} is {_OPEN}(.|!|)
(Bill|Invoice|Your bill|Reminder|Last reminder|Amount due|To pay|Payable)(:|) {{goods}}(,| at| for| =) {{money}}(.|)
(You bought|You got|You received|You have had|We delivered|We sold you) {{goods}}(, and|. Now|; so far) {{money}} (is missing|is owed|has to be paid|has not arrived|is open)(.|!|)
{{person}} (still owes|owes|has to pay|must pay|has been billed|was billed|gets a bill of) {{money}} for {{goods}}(.|)
(Dear|Hello|Hi|Hey|Hiya|Mr|Ms|Mrs|Dear Mr|Dear Ms|Dear Mrs|Dear Dr.) {{person}}(,|!|:) (the|your|a|our) (bill|invoice) for {{goods}} (is here|is ready|is attached|comes to {{money}}|is still open|needs paying)(.|!|)
(Dear|Hello|Hi|Dear Mr|Dear Ms) {{person}}, (don't forget|please remember|remember|friendly reminder|just a reminder): {{goods}}, {{money}}(.|!|)
(We charge|We bill|We invoice) (you|) {{money}} for {{goods}}(.|)
(Delivered|Sold) to {{person}}, {{city}}: {{goods}}(.|) (Invoice|Bill|Amount|To pay) {{money}}(.|)
(Payment|The money|Your payment|A sum of {{money}}) for {{goods}} (has not arrived|is expected|did not reach us|is missing|is outstanding)(.|!|)
(What you owe us|What is open|Open items|Account)(:|) {{goods}}, {{money}}(.|)
(Could you|Can you|Please|Kindly|Pls) (pay|wire|transfer|settle) {{money}} for {{goods}} (by|before|until|not later than) {{due}}(.|?|!|)
(Our|The) (invoice|bill) for {{goods}} (delivered|sold) to {{person}} (in|,) {{city}}(.|)
"""),
    {
        "person": _lines("""
(Debtor|Customer|Client|Billed to|Bill to|For|Buyer|To|Invoice to|Made out to)(:|) (Mr |Ms |Mrs |Dr. ||||) {person}(.|)
^(Dear|Hello|Hi|Hey|Hiya|To) (Mr |Ms |Mrs |Frau |Herr |Señor |||||) {person}(,|!|:)
(The customer|The buyer|The one who owes us|Our client) is {person}(.|)
"""),
        "city": _lines("""
(It|They|The goods|All|Everything) (went|were sent|was sent|was delivered|were delivered) to (you in|your house in|your shop in|) {city}(.|)
(Place|Town|Delivered to|Customer in|Address|City)(:|) {city}(.|)
"""),
        "person city": _lines("""
(Customer|To|Bill to|Client|Buyer)(:|) {person}(,| in| from| /) {city}(.|)
"""),
        "money": _lines("""
(Amount|Open|Total|Sum|To pay|Payable|We get|You pay|You owe us|It makes|That makes|The total is|Altogether)(:|) {money}(.|!|)
{money} (is what you owe|is still open|is missing|would be nice|is the amount|are due)(.|!|)
"""),
        "due": _lines("""
(Pay|Payable|Please pay|Wire it|Settle it|Transfer it|Due|To be paid|Pls pay|Kindly pay|We want the money|The money should be here) (by|before|until|on|no later than|not later than|latest) {due}(.|!|, please.|)
(Due|Pay date|Term|Pay until|Last day|Payment date)(:|) (by|on|) {due}(.|)
(This is due|Payment is due) on {due}(.|)
After {due} (it gets expensive|we charge interest|we call a lawyer)(.|!)
"""),
        "money due": _lines("""
{money} (by|until|before|payable by|is due on|due) {due}(.|!|, please.|)
"""),
    },
)

_SHIPMENT = (
    _lines("""
(Your|The|Our) (package|parcel|box|crate|delivery|shipment|goods) (with|holding|of|containing|:) {goods} (is on the way|has left|was picked up|is coming|is out for delivery|was loaded this morning|is in the truck)(.|!|)
(On its way|On their way|Shipped|Sent|Dispatched|Out for delivery|In transit|Incoming)(:|) {goods}(.|!|)
{goods} (have left|left) (us|our warehouse|the port|the factory|here)(.|!| and go to you.|)
{goods} (are on the way|are coming|is coming|shipped|is on the road|will arrive soon) to {city}(.|!|)
(Tracking|Parcel|Package|Contents|In the box|Shipment|Delivery notice|Cargo)(:|) {goods}(.|)
(We|The driver|Our truck|The courier|The post) (will bring|brings|has|carries|will deliver|delivers) {goods} (to {city}|for {person}|today|soon)(.|)
(Good news|Hooray|FYI|Hey|Dear|Hello|Hi) {person}(!|,|:) (your|the) {goods} (left today|are on the way|is on the way|were shipped|was shipped|arrive soon|arrives soon)(.|!|)
(Good news|FYI|Hi|Hello|Dear) {person}(!|,|:) {goods} (will arrive|arrive|come|get delivered|should be) (in|at your place in) {city} (on|by) {due}(.|!|)
(Expect|Look out for|Get ready for|Wait for) {goods} (on|by) {due}(.|!|)
(From|Out of) our (store|shop|hub) (to|towards) {city}: {goods}(.|)
{goods} (for|to) {person}, {city}, (shipped|sent|on the way|in transit|left today)(.|)
"""),
    {
        "person": _lines("""
(Recipient|To|For|Receiver|Consignee|Addressee|Deliver to|Signed for by|c/o)(:|) (Mr |Ms |Mrs |||||) {person}(.|)
^(Dear|Hello|Hi|Hey|Good news,) (Mr |Ms |Mrs |Frau |Herr |Madame ||||) {person}(,|!|:)
"""),
        "city": _lines("""
(To|Destination|Going to|Dest|Delivery in|Deliver to|Goes to|City)(:|) {city}(.|)
(It|They|The box) (will be delivered|arrives|arrive|gets off) in {city}(.|!|)
"""),
        "person city": _lines("""
(To|Recipient|For|Receiver|Ship to)(:|) {person}(,| in| /|,) {city}(.|)
"""),
        "money": _lines("""
(Value|Worth|Insured|Declared|Declared value|Insured for|Goods value|Price|Val|Insurance|COD)(:|) {money}(.|)
(It is|They are|All|The lot is|The contents are) worth {money}(.|)
"""),
        "due": _lines("""
(ETA|Arrives|Arrival|Arriving|Expected|Comes|Delivery|Delivered|It comes|You get it|It should be there|Be at home|Planned|Est. arrival)(:|) (on|by|) {due}(.|!|)
(Be at home|Open the door|Stay at home|Wait for us) on {due}(.|!|)
"""),
        "city due": _lines("""
(Arrives|Arriving|Lands|Will be) in {city} (on|by) {due}(.|)
{city}, (ETA|arrival|on) {due}(.|)
"""),
    },
)

_BAD = (
    "(broken|in pieces|wet|damaged|useless|junk|garbage|defective|faulty|dead|rusty|torn|dirty|scratched|not what I "
    "ordered|the wrong colour|too small|a joke|not working)"
)
_COMPLAINT = (
    _lines(f"""
(I'm|I am|Im|We are) (so|really|very|just|) (angry|unhappy|upset|mad|disappointed|furious|fed up|not amused|shocked)(!|!!|.|:) {{goods}}(, and| and| but|,) (all|every one|everything|it all) {_BAD}(!|.|)
{{goods}}(,|:| -) (all of it|all|each one) {_BAD}(!|.|!!|)
(My|The|Those|These|Your) {{goods}} (came|arrived|are|is|was|were|turned out) {_BAD}(.|!|!!)
(The|Your|My) {{goods}} (do not work|does not work|stopped working|broke after a day|fell apart|leaks|leak|make a terrible noise|is a disaster|never worked|do not fit|died)(.|!|!!|)
(I|We) (bought|ordered|got|paid for|waited for|received) {{goods}} and (what came was|it was|they were|they are|it is|all of it is|half of it is) {_BAD}(.|!|)
(Never again|What a mess|Unbelievable|Shame on you|Terrible|Not happy|Really?|Seriously?|Not ok|I can't believe it)(!|.|...|) {{goods}} (arrived|came|and all of it) {_BAD}(!|.|)
(I want|I demand|We want|Give me|Gimme) my {{money}} back for {{goods}}(!|.|)
{{money}} for {{goods}}(,| and) {_BAD}(!|.|...)
(I|We) (paid|spent|gave you) {{money}} for {{goods}}(, but|. And|, and) (nothing works|it broke|they are broken|it came damaged|they leak|it is the wrong one|half is missing)(!|.|)
{{person}} (is angry|is unhappy|wants the money back|complains|has complained|is upset|returned everything)(:|, because| since|;) {{goods}} (arrived|came|were|was) {_BAD}(.|)
(Complaint|I complain|A complaint|We complain|Claim)(:|!|,) {{goods}}(,| arrived| came|:) {_BAD}(.|!|)
(For years|Until now|So far) (I was|we were) (happy|content) with you, but {{goods}} (broke|broke at once|came damaged|never worked|arrived in pieces)(.|!)
(The|Your) (box|parcel|postman|driver) brought {{goods}}, {_BAD}(.|!)
{{goods}} (came|got|arrived|delivered) to {{city}} {_BAD}(.|!|)
"""),
    {
        "money": _lines("""
(Paid|I paid|We paid|I payed|Cost me|That cost|It was|Price|They took|You took|Wasted|Bought for)(:|) {money}(.|!|!!| for nothing!|)
(Money back|I want back|Give back|Refund|Pay back|Return)(:|) (my |) {money}(!|.|, please.|)
{money} (is a lot of money|for that|down the drain|wasted)(!|.|)
"""),
        "due": _lines("""
(Answer|Reply|Fix this|Fix it|Solve this|I want an answer|Do something|Settle it|Call me|New ones) (by|before|until|till|no later than|not later than) {due}(.|!|, or else.|, please.|)
(You have|You got|I give you) (time |) (until|till|to) {due}(.|!|)
After {due} (you hear from my lawyer|I tell the papers)(.|!)
"""),
        "city": _lines("""
(Delivered|It came|They came|You sent it|Sent|Shipped) to {city}(.|)
"""),
        "money due": _lines("""
(Money back|Refund|I want|Give me|Return) (my |the |) {money} (back |) (by|before|until) {due}(.|!|)
"""),
    },
)

_QUOTE = (
    _lines("""
(What|How much) (would|do|does|will) {goods} (cost|set me back|be)(?| with you?|, please?)
(What's|What is|Whats|Tell me|I need|Send me|Give me) (your|the|a) (price|best price|quote|offer|estimate|rate) (for|on|of) {goods}(?|.|, please.| pls|)
(Price|Quote|Offer|Estimate|Quotation|Price check|Cost)(?|:| for| on|) {goods}(?|.|)
(need|want|looking for|searching|I'd like|we'd like|wanted:) a (price|quote|offer) (for|on) {goods}(.|?|)
(Could|Can|Would|Will) (you|u) (make|give|send|write) (me|us) (an offer|a quote|a price|an estimate) for {goods}(?|, please?|)
(I wonder|We wonder|I would like to know|Please tell me|May I ask) (what|how much) {goods} (would cost|would be|cost)(.|?)
(We think of|I think of|We are thinking about|I might be) (buying|getting|taking) {goods}. (What would you ask|What is the price|Price|How much|Your offer)(?|, please?)
(What could you do|Could you do something|Any chance to do better|Is there a discount) (for|on) {goods}?
{person} (asks|would like to know|is asking|wants to know|wonders) (what|how much) {goods} (would cost|cost)(.|)
{person} (needs|wants|asks for|requests|would like) (a quote|an offer|a price|an estimate) for {goods}(.|)
(We compare|I am comparing|Comparing) (shops|prices|offers)(:|.) {goods}(, your price?|?)
If (I take|we buy|I order) {goods}, (what do I pay|what is the price|how much is it|how low can you go)(?| with you?)
"""),
    {
        "money": _lines("""
(Max|Max.|Maximum|Budget|Up to|At most|Around|About|Not above|Not more than|I have|We have|I can spend|We could spend|I would pay|We can pay)(:|) {money}(.| max.| at most.| is fine.| would be ok.| to spend.|)
(It|They|All) (should|must) (not exceed|stay below|not cost more than|be under) {money}(.|)
{money} (max|at most|is our limit|is what we have|or less)(.|)
(Others|The shop next door|Your rival) (ask|asks|wants|want) {money}(.|)
"""),
        "due": _lines("""
(Answer|Reply|Let me know|Tell me|Send it|Your offer|Offer|Quote|Offers|I must know|Price needed) (by|before|until|till|not later than|no later than) {due}(.|!|, please.| pls|)
(We decide|I decide|I choose|The boss decides|We order) on {due}(.|)
(Deadline|Until|By|Reply by|Offer until)(:|) {due}(.|)
"""),
        "city": _lines("""
(We|I) (have|own|rent) a (big |nice |) (shop|school|bar|garage|farm|clinic) in {city}(.|)
(Delivered|Delivery|Shipping|Sent) to {city}(?|.|, please.|)
"""),
    },
)

_MEETING = (
    _lines("""
(Let's|Let us|Can we|Could we|Shall we|We should|We could|Wanna) (meet|sit down|get together|have a chat|talk) about the {topic}(.|?|!|)
(Meeting|Meet-up|Call|Get-together|Sync|Chat)(:| about the| on the|, topic:) {topic}(.|!|)
(You're invited|You are invited|Join us|Come|Please come|Be there) (for|to) the {topic} (meeting|talk|round)(.|!|)
{person} (wants to meet|would like a meeting|calls a meeting|hosts a meeting|is hosting) (about|on) the {topic}(.|)
(See you|Meet you|We meet|Let's meet|Meeting) (in|over in) {city} on {due}(.|!|?|)
(The|Our|Next) {topic} meeting is (on|set for) {due}(.|!|)
"""),
    {
        "time": _lines("""
(At|Starts at|Start|We begin at|From|Be there at|Time|Clock) {time}(.|!| sharp.|)
"""),
        "due": _lines("""
(When|Day|Date|On|It's on|It is on|Save the date|Keep free)(:|) {due}(.|!|)
"""),
        "city": _lines("""
(Where|Place|In|It's in|Location|Venue)(:|) {city}(.|!|)
"""),
        "person": _lines("""
(Host|Hosted by|Led by|Organizer|Invited by|Chair)(:|) {person}(.|)
"""),
        "topic": _lines("""
(About|Topic|What|Agenda|Subject)(:|) (the |) {topic}(.|)
"""),
    },
)

_APPLICATION = (
    _lines("""
(I'd love|I would love|I'd like|I want|I'm keen|I am eager|Would love) to work (for you|with you|at your place|in your team) as (a|your new|your) {role}(.|!|)
(I'm|I am|Im) (a|an experienced|a trained) {role} and (need|want|look for|am looking for) a job(.|!| with you.|)
(You are looking for|You need|You want|Do you still need) a {role}? (Here I am|Take me|I'm the one|Look no further|I apply)(!|.)
(My CV|My résumé|My papers|My application) for the {role} (job|post|position) (is attached|is enclosed|follows|comes with this)(.|)
(Applying|Application|I apply|Job application)(:| for| as) {role}(.|)
{person} (applies|wants to work|would like to work|is applying|applied) as (a|our|the) {role}(.|)
"""),
    {
        "years": _lines("""
{years} years (in the job|of experience|on the job|at it|of practice)(.|!|)
(Doing this|I do this|Working|Experience|In the trade) (for|since|of|:) {years} years(.|)
"""),
        "due": _lines("""
(Can start|I could start|Could begin|Free|Available|I'm free|Ready|Start) (on|from|as of|by) {due}(.|!|)
"""),
    },
)

_TITLES = {
    "order": "order request|my order|Order please|ORDER FORM|things we need|re: order|web order",
    "invoice": "your bill|INVOICE|re: invoice|open invoice|account statement",
    "shipment": "your package|SHIPPED|delivery info|parcel news|re: shipment",
    "complaint": "COMPLAINT!!|I am angry|re: broken goods|problem with my order|bad quality|refund",
    "quote": "price?|quote please|price request|asking for an offer|re: quotation|RFQ",
    "meeting": "meeting|appointment|invite|let's meet|re: meeting",
    "application": "job application|CV|applying for the job|re: your vacancy",
}


def _widened(kind: str, cores: tuple[str, ...], sentences: dict[str, tuple[str, ...]]) -> Family:
    known = FAMILIES[kind]
    joined = {name: sentences.get(name, ()) for name in {**known.sentences, **sentences}}
    for name, texts in known.sentences.items():
        joined[name] = joined[name] + texts
    return Family(
        titles=known.titles + tuple(_TITLES[kind].split("|")),
        cores=cores,
        mandatory=known.mandatory,
        sentences=joined,
        extras=known.extras,
        due_labels=known.due_labels,
    )


WIDE_FAMILIES: dict[str, Family] = {
    "order": _widened("order", *_ORDER),
    "invoice": _widened("invoice", *_INVOICE),
    "shipment": _widened("shipment", *_SHIPMENT),
    "complaint": _widened("complaint", *_COMPLAINT),
    "quote": _widened("quote", *_QUOTE),
    "meeting": _widened("meeting", *_MEETING),
    "application": _widened("application", *_APPLICATION),
}
