"""Sentences of the training corpus, by kind of message.

`{slot}` stands for a fact (see `corpus.FACTS`); `{goods}` for quantity and item together, `{money}` for price and
currency. A message is a core sentence, then sentences for what the core left out, then extras and noise.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """How messages of one kind are worded.

    Args:
        titles: First lines of labelled messages; one of them tells the kind.
        cores: Sentences that tell the kind and some mandatory facts.
        mandatory: Facts that every message of the kind holds.
        sentences: For a fact, sentences that tell it alone (or with others).
        extras: Optional facts, told by `sentences` too.
        due_labels: Names of the due date in labelled messages.
    """

    titles: tuple[str, ...]
    cores: tuple[str, ...]
    mandatory: tuple[str, ...]
    sentences: dict[str, tuple[str, ...]]
    extras: tuple[str, ...]
    due_labels: tuple[str, ...]


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


GREETINGS = _lines("""
Hello,
Hi,
Hi there,
Dear team,
Dear all,
Good morning,
Good afternoon.
Hello everyone,
Dear Sir or Madam,
To whom it may concern,
Good day,
Hey,
Dear colleagues,
Hello again!
""")

CLOSINGS = _lines("""
Thank you.
Thanks!
Many thanks.
Thanks in advance.
Best regards.
Kind regards.
Please confirm.
Please reply soon.
Let me know if anything is unclear.
Cheers
Looking forward to your answer.
Sincerely.
Have a nice day!
Thank you for your help.
""")

NOISE = _lines("""
I hope you are well.
The weather has been lovely here.
It has been raining here for 3 days.
Our office is open from 9 to 17 on weekdays.
We have worked together for 12 years.
Please do not reply to this address.
I tried to call twice but nobody answered.
Sorry for the late message.
The lift is out of order, so use the stairs.
We really enjoyed the last visit.
This message was sent from my phone.
The parking lot behind the building is free.
My train was late again this morning.
As you may know, we moved last year.
We are 4 people in the office.
Everything else can stay as it is.
There is no need to call back.
I got your address from a friend.
Your website was down yesterday.
Please keep this message for your files.
Nothing else has changed since last time.
The door code is 4711.
I have told the others about it.
We are very happy with the service so far.
Feel free to forward this.
I will be away over the weekend.
The coffee machine works again, by the way.
Ring the bell twice, please.
Page 2 of the catalogue was missing.
You can find the details below.
Please read this carefully.
My assistant will open the door.
We talked about it last week.
It took me 20 minutes to find your address.
The terms are the same as before.
This is the second message today.
I will write again next month.
No further action is needed today.
The rest is as agreed.
Our phone line is busy most mornings.
{noise_person} says hello.
{noise_person} is on holiday this week.
Please also tell {noise_person} about this.
{noise_person} told me to write to you.
My colleague {noise_person} is copied.
I met {noise_person} at the fair.
Our branch in {noise_city} is closed.
We were in {noise_city} last week.
The office in {noise_city} knows about it.
We last wrote on {noise_date}.
We spoke about this on {noise_date}.
I was on holiday until {noise_date}.
Our new catalogue came out on {noise_date}.
This message was written on {noise_date}.
We moved offices on {noise_date}.
Please ignore my message of {noise_date}.
Since {noise_date} we have a new phone number.
This has nothing to do with case {noise_ref}.
My earlier message had the number {noise_ref}.
""")

GENERIC: dict[str, tuple[str, ...]] = {
    "city": _lines("""
We are in {city}.
Our address is in {city}.
Place: {city}.
I live in {city}.
The address is in {city}.
Our shop is in {city}.
City: {city}.
We are based in {city}.
I am writing from {city}.
It is for our place in {city}.
You know our office in {city}.
"""),
    "person": _lines("""
My name is {person}.
I am {person}.
This is {person}.
This is {person} writing.
Regards, {person}
Best wishes, {person}
Yours, {person}
Kind regards, {person}
Name: {person}.
{person} here.
It is me, {person}.
Thanks, {person}
"""),
    "person city": _lines("""
My name is {person} and I live in {city}.
I am {person} from {city}.
This is {person} in {city}.
{person} from {city} here.
Regards, {person}, {city}
Best wishes from {city}, {person}
Name and place: {person}, {city}.
Yours, {person} ({city})
{person}, {city}, is writing.
"""),
    "email": _lines("""
You can reach me at {email}.
My email is {email}.
Please answer to {email}.
Email: {email}.
Write to {email}.
Send the papers to {email} please.
Contact: {email}.
"""),
    "phone": _lines("""
My phone number is {phone}.
Call me on {phone}.
Phone: {phone}.
You can call {phone} any time.
Tel. {phone}.
My number is {phone}.
Questions? Call {phone}.
"""),
    "email phone": _lines("""
Contact: {email}, {phone}.
Write to {email} or call {phone}.
Phone {phone}, email {email}.
"""),
    "company": _lines("""
I work for {company}.
I am writing for {company}.
Our company is {company}.
This is on behalf of {company}.
Company: {company}.
We are {company}.
"""),
    "agent": _lines("""
{agent} from your team helped me.
Your colleague {agent} knows the details.
Handled by {agent}.
Your agent was {agent}.
{agent} in your office took the call.
I have already spoken to {agent} in your office.
Agent in charge: {agent}.
"""),
    "urgent": _lines("""
This is urgent.
It is very urgent!
Please hurry.
We need it as soon as possible.
Urgent!
Time is short, please be quick.
This cannot wait.
Please treat it as a priority.
"""),
    "not_urgent": _lines("""
There is no hurry.
It is not urgent.
Take your time.
No rush at all.
This is not urgent, really.
There is no need to hurry.
"""),
}

ORDER = Family(
    titles=_lines("""
ORDER
New order
Purchase order
Order form
Web order
Order received
Order
"""),
    cores=_lines("""
I would like to order {goods}.
We order {goods} for {money}.
Please send me {goods}.
Please send {goods} to {person} in {city}.
{person} from {city} orders {goods}.
{person} ({city}) wants {goods} for {money}.
New order from {person}: {goods}.
We need {goods} by {due}.
I want to buy {goods} from you for {money}.
Order for {person}, {city}: {goods}, {money}, due {due}.
Please put me down for {goods} at {money}, delivery by {due}.
{person} would like {goods} delivered to {city} by {due}.
Can you deliver {goods} to {city} before {due}? I can pay {money}.
We would like to place an order: {goods}.
Our customer {person} in {city} has ordered {goods}.
An order came in from {person} of {city} for {goods}, {money} in total.
Please book this order: {goods}, {money}, for {person}.
I am ordering {goods} and will pay {money}.
For our shop in {city} we need {goods}.
Kindly supply {goods} to {person}, {city}, by {due}.
{person} is ordering {goods} for {money}, to arrive by {due}.
This is {person} from {city}, I want to order {goods}.
By {due} please deliver {goods} to {city}.
{goods} for {person} in {city}, please, by {due}.
Order of {goods}, total {money}.
To {city}, for {person}: {goods}. We pay {money}.
"""),
    mandatory=("person", "city", "goods", "money", "due"),
    sentences={
        "money": _lines("""
The total is {money}.
I can pay {money}.
The price is {money}.
We agreed on {money}.
My budget is {money}.
I will pay {money} for it.
That makes {money} in all.
The catalogue says {money}.
Price: {money}.
Total price {money}.
We pay {money} on delivery.
It should cost {money}.
"""),
        "due": _lines("""
Please deliver by {due}.
We need it by {due}.
Delivery by {due}, please.
It must arrive before {due}.
Please make sure that it is here on {due}.
Delivery date: {due}.
The delivery is due on {due}.
It has to be here by {due} at the latest.
I need it on {due}.
Latest delivery: {due}.
The deadline is {due}.
"""),
        "city": _lines("""
Please deliver to {city}.
Ship it to {city}.
Delivery to {city}, please.
It goes to {city}.
Send everything to {city}.
"""),
        "money due": _lines("""
We pay {money} if it arrives by {due}.
Total {money}, delivery by {due}.
It should be here by {due} and cost {money}.
"""),
        "city due": _lines("""
Delivery to {city} by {due}.
It must be in {city} by {due}.
Bring it to {city} before {due}, please.
"""),
        "ref": _lines("""
Our order number is {ref}.
Order number {ref}.
The order has the number {ref}.
Reference: {ref}.
Please quote order {ref}.
Order no. {ref}.
"""),
        "dated": _lines("""
The order was placed on {dated}.
I ordered it on {dated}.
Ordered on {dated}.
Date of the order: {dated}.
"""),
        "colour": _lines("""
The colour should be {colour}.
Colour: {colour}.
In {colour}, please.
We want it in {colour}.
"""),
    },
    extras=("ref", "dated", "colour", "email", "phone", "company", "agent", "urgent"),
    due_labels=("Delivery date", "Deliver by", "Delivery", "Due", "Due date", "Deadline", "Needed by"),
)

INVOICE = Family(
    titles=_lines("""
INVOICE
Invoice
Bill
Payment request
Your invoice
Invoice for your purchase
"""),
    cores=_lines("""
Here is the invoice for {goods}.
Attached is our invoice over {money} for {goods}.
We invoice {person} in {city} for {goods}: {money}.
Invoice to {person}, {city}: {goods}, {money}, payable by {due}.
Please pay {money} for {goods} by {due}.
This is the bill for {goods}.
{person} ({city}) owes us {money} for {goods}.
We have billed {person} for {goods}.
Our invoice for {goods} comes to {money}.
Dear {person}, we bill you {money} for {goods}.
Dear {person}, please find the invoice for {goods}.
The invoice of {person}, {city}, for {goods} is still open.
Invoice: {goods} for {person}, amount {money}.
An invoice of {money} was sent to {person} in {city} for {goods}.
Please transfer {money} for {goods}.
For {goods} we charge you {money}, payable until {due}.
The bill for {person} in {city}: {goods}, {money}.
Payment of {money} for {goods} is due on {due}.
{person} has to pay {money} for {goods} by {due}.
We send you the invoice for {goods} that went to {city}.
Bill to {person}, {city}. Goods: {goods}.
You received {goods} from us and the invoice is {money}.
Reminder: the invoice for {goods} is not settled yet.
Invoice for {person}: {goods}. Pay by {due}.
"""),
    mandatory=("person", "city", "goods", "money", "due"),
    sentences={
        "person": _lines("""
The invoice is made out to {person}.
Customer: {person}.
Bill to {person}.
The customer is {person}.
Billed to: {person}.
The buyer was {person}.
"""),
        "city": _lines("""
Customer's city: {city}.
The customer lives in {city}.
The goods went to {city}.
Billing address: {city}.
It was delivered to {city}.
"""),
        "person city": _lines("""
Customer: {person}, {city}.
Bill to {person} in {city}.
The customer is {person} from {city}.
The invoice goes to {person}, {city}.
"""),
        "money": _lines("""
The amount is {money}.
Amount due: {money}.
Total: {money}.
The sum is {money}.
It comes to {money}.
You owe us {money}.
Please pay {money}.
The invoice total is {money}.
The price was {money}.
"""),
        "due": _lines("""
Please pay by {due}.
Payment is due on {due}.
Payable by {due}.
Due date: {due}.
The money must be here by {due}.
Please settle it before {due}.
Pay until {due} at the latest.
Payment deadline: {due}.
We expect your payment by {due}.
"""),
        "money due": _lines("""
Please transfer {money} by {due}.
{money} is payable by {due}.
The sum of {money} is due on {due}.
Pay {money} before {due}, please.
"""),
        "ref": _lines("""
Invoice number {ref}.
The invoice number is {ref}.
Invoice no. {ref}.
Please give the number {ref} with your payment.
Reference: {ref}.
"""),
        "dated": _lines("""
The invoice was issued on {dated}.
Invoice date: {dated}.
Issued on {dated}.
The invoice is dated {dated}.
"""),
    },
    extras=("ref", "dated", "email", "phone", "company", "agent"),
    due_labels=("Due date", "Pay by", "Payment due", "Payable by", "Due", "Payment deadline"),
)

SHIPMENT = Family(
    titles=_lines("""
SHIPMENT
Shipping notice
Delivery note
Your parcel
Dispatch note
Shipment
"""),
    cores=_lines("""
Your parcel with {goods} is on its way.
We have shipped {goods} to {person} in {city}.
{goods} left our warehouse for {city}.
The parcel for {person} in {city} holds {goods}.
Dear {person}, we have sent {goods} to {city}.
Good news, {person}: {goods} will reach {city} on {due}.
Shipment to {person}, {city}: {goods}, value {money}, arrival {due}.
We dispatched {goods} today.
The shipment of {goods} for {person} will arrive on {due}.
On {due} we deliver {goods} to {person} in {city}.
{person} ({city}) will receive {goods} on {due}.
A parcel worth {money} with {goods} is going to {city}.
Your shipment of {goods} to {city} is on the road.
The truck with {goods} for {person} has left.
We are shipping {goods} worth {money} to {person} in {city}.
The package contains {goods}.
Packed and sent: {goods} for {person}, {city}.
Your delivery of {goods} is expected in {city} on {due}.
Consignment for {person}: {goods}, insured for {money}.
The parcel service has picked up {goods} for {city}.
Shipped today to {city}: {goods}.
Expect {goods} at your door on {due}.
{goods} shipped to {person}, {city}. Arrival {due}.
"""),
    mandatory=("person", "city", "goods", "money", "due"),
    sentences={
        "person": _lines("""
It goes to {person}.
The parcel is for {person}.
Recipient: {person}.
The customer is {person}.
It is addressed to {person}.
{person} will sign for it.
"""),
        "city": _lines("""
Destination: {city}.
It goes to {city}.
The address is in {city}.
The parcel will be delivered in {city}.
It is addressed to {city}.
"""),
        "person city": _lines("""
It is addressed to {person} in {city}.
Recipient: {person}, {city}.
It goes to {person}, {city}.
Customer: {person} from {city}.
"""),
        "money": _lines("""
The value is {money}.
Value: {money}.
The goods cost {money}.
It is insured for {money}.
The price was {money}.
The parcel is worth {money}.
Total value {money}.
"""),
        "due": _lines("""
It will arrive on {due}.
Expected arrival: {due}.
Delivery is planned for {due}.
You will get it by {due}.
The parcel should be there on {due}.
Arrival: {due}.
It reaches you by {due} at the latest.
It will be delivered on {due}.
"""),
        "city due": _lines("""
It will be in {city} on {due}.
It reaches {city} by {due}.
Arrival in {city}: {due}.
"""),
        "ref": _lines("""
The tracking number is {ref}.
Tracking: {ref}.
Follow it with the code {ref}.
Tracking number {ref}.
Parcel number: {ref}.
"""),
        "dated": _lines("""
It was shipped on {dated}.
Shipped on {dated}.
It left us on {dated}.
The parcel was picked up on {dated}.
"""),
        "carrier": _lines("""
It travels with {carrier}.
{carrier} will deliver it.
Carrier: {carrier}.
We sent it by {carrier}.
"""),
        "origin": _lines("""
It was sent from {origin}.
It left our warehouse in {origin}.
Sent from: {origin}.
It starts in {origin}.
"""),
        "weight": _lines("""
The weight is {weight} kg.
It weighs {weight} kg.
Weight: {weight} kg.
"""),
    },
    extras=("ref", "dated", "carrier", "origin", "weight", "email", "phone", "company"),
    due_labels=("Arrival", "Expected arrival", "Delivery date", "Delivery", "Arrives on", "Due"),
)

COMPLAINT = Family(
    titles=_lines("""
COMPLAINT
Complaint
Customer complaint
Claim
Problem report
Return and complaint
"""),
    cores=_lines("""
I am very unhappy with {goods} that I bought from you.
I bought {goods} for {money} and it does not work.
{person} from {city} complains about {goods}.
I want to complain about {goods}.
The {goods} you sent to {city} arrived damaged.
I paid {money} for {goods} and I am disappointed.
{person} ({city}) is not satisfied with {goods} and wants {money} back.
We received {goods} from you, but the quality is terrible.
A complaint from {person} in {city}: {goods} arrived broken.
This is a complaint. My order of {goods} came damaged.
Your delivery of {goods} to {city} was a disaster.
{goods} for {money}, and nothing works!
Our customer {person} complained about {goods}, price {money}.
I ordered {goods} and what I got is useless.
Complaint by {person}, {city}, about {goods} for {money}. Answer by {due}.
I am returning {goods} because of bad quality.
I want my {money} back for {goods} by {due}.
{person} returned {goods} and expects {money} back by {due}.
Unfortunately {goods} from your shop broke at once.
The order of {goods} for {person} in {city} was delivered damaged.
I am disappointed: {goods} arrived in pieces.
You promised quality, but {goods} for {money} fell apart.
"""),
    mandatory=("person", "city", "goods", "money", "due"),
    sentences={
        "city": _lines("""
It was delivered to {city}.
I live in {city}.
You delivered to {city}.
My address is in {city}.
"""),
        "money": _lines("""
I paid {money}.
It cost me {money}.
The price was {money}.
I want {money} back.
I paid {money} for that.
You charged me {money}.
Price paid: {money}.
That was {money} wasted.
"""),
        "due": _lines("""
Please answer by {due}.
I expect your answer by {due}.
Please solve this by {due}.
I want a solution before {due}.
Reply until {due}, or I will call my lawyer.
I give you time until {due}.
Please fix it by {due}.
You have until {due} to answer.
Answer needed by {due}.
"""),
        "money due": _lines("""
I want {money} back by {due}.
Please refund {money} before {due}.
Pay back {money} until {due}.
"""),
        "ref": _lines("""
My order number is {ref}.
The order number was {ref}.
Order {ref}.
Reference: {ref}.
The case has the number {ref}.
"""),
        "dated": _lines("""
I bought it on {dated}.
The purchase was on {dated}.
Bought on {dated}.
It was delivered on {dated}.
Date of purchase: {dated}.
"""),
        "problem": _lines("""
The problem: {problem}.
I found this: {problem}.
What is wrong: {problem}.
Defect: {problem}.
There is a clear defect: {problem}.
"""),
        "resolution": _lines("""
I want a {resolution}.
I ask for a {resolution}.
Please arrange a {resolution}.
I expect a {resolution}.
"""),
        "severity": _lines("""
The severity is {severity}.
Severity: {severity}.
I would call the severity {severity}.
Priority: {severity}.
"""),
    },
    extras=("ref", "dated", "problem", "resolution", "severity", "email", "phone", "urgent", "agent"),
    due_labels=("Answer by", "Reply by", "Answer needed by", "Deadline", "Due", "Solve by"),
)

QUOTE = Family(
    titles=_lines("""
QUOTE REQUEST
Request for a quote
Price enquiry
Request for an offer
Quotation
"""),
    cores=_lines("""
Could you send us a quote for {goods}?
What would you charge for {goods}?
We ask for an offer for {goods}.
{person} from {city} asks for a quote for {goods}.
Please quote us a price for {goods}, delivered to {city}.
How much would {goods} cost?
I am interested in {goods} and would like an offer by {due}.
Request for a quote: {goods} for {person}, {city}, about {money}, offer by {due}.
{person} ({city}) would like to know the price of {goods}.
Is {money} a fair price for {goods}? Please make us an offer.
Please let me have your best offer for {goods}.
We are comparing prices for {goods}.
A customer, {person} of {city}, wants an offer for {goods} at about {money}.
May I have a quotation for {goods} to {city} by {due}?
Could you make an offer for {goods} below {money}?
We got a price enquiry from {person} in {city} for {goods}.
I am looking for {goods}, what is your price?
Can you offer {goods} for {money}?
Before we decide, we need a quote for {goods}.
Your competitor asks {money} for {goods}. Can you do better?
We may buy {goods}, so please send an estimate by {due}.
"""),
    mandatory=("person", "city", "goods", "money", "due"),
    sentences={
        "city": _lines("""
It would go to {city}.
We would need it in {city}.
The address would be in {city}.
Delivery would be to {city}.
"""),
        "money": _lines("""
Our budget is {money}.
We can spend {money}.
We thought of {money}.
The price should be about {money}.
Another shop offers {money}.
It should not cost more than {money}.
Budget: {money}.
"""),
        "due": _lines("""
Please send your offer by {due}.
We need the quote by {due}.
We decide on {due}.
Offers are welcome until {due}.
Please answer by {due}.
Send us the price before {due}.
The deadline for offers is {due}.
Quote needed by {due}.
"""),
        "ref": _lines("""
Our request has the number {ref}.
Request number {ref}.
Reference: {ref}.
Please quote the number {ref}.
"""),
        "colour": _lines("""
The colour should be {colour}.
Colour: {colour}.
We would like {colour}.
"""),
    },
    extras=("ref", "colour", "email", "phone", "company", "agent", "urgent"),
    due_labels=("Offer by", "Quote needed by", "Deadline", "Answer by", "Due"),
)

MEETING = Family(
    titles=_lines("""
MEETING
Meeting invitation
Invitation
Meeting
Appointment
Agenda
"""),
    cores=_lines("""
Let us meet in {city} on {due} to talk about the {topic}.
{person} invites you to a meeting about the {topic}.
The meeting about the {topic} takes place on {due}.
Can we meet on {due} at {time}?
We will meet in {city} at {time}.
{person} would like to meet you in {city} on {due}.
Please join us for the {topic} meeting on {due} at {time}.
Invitation to a meeting: {topic}, {city}, {due}, {time}.
I would like to discuss the {topic} with you in {city}.
The next team meeting is on {due} in {city}.
{person} has set up a meeting in {city} on {due} at {time}.
Are you free for a meeting about the {topic} in {city}?
The {topic} is on the agenda of our meeting in {city}.
At {time} on {due} we sit down for the {topic}.
Let us have a meeting on the {topic}, hosted by {person}.
You are invited to discuss the {topic} in {city} with {person}.
Meeting with {person} in {city} on {due}, {time}, about the {topic}.
{person} from {city} asks for an appointment on {due}.
We have booked a room in {city} for the {topic} meeting.
Reminder of our meeting with {person} on {due}.
"""),
    mandatory=("person", "city", "due", "time", "topic"),
    sentences={
        "person": _lines("""
{person} will lead the meeting.
{person} is the host.
The host is {person}.
Organised by {person}.
Regards, {person}
Yours, {person}
{person} will be in the chair.
"""),
        "city": _lines("""
We meet in {city}.
The place is {city}.
It will be in {city}.
Place: {city}.
Please come to {city}.
"""),
        "due": _lines("""
The date is {due}.
The meeting is on {due}.
It takes place on {due}.
We meet on {due}.
Date: {due}.
Please keep {due} free.
"""),
        "time": _lines("""
We start at {time}.
It begins at {time}.
Time: {time}.
The meeting starts at {time}.
Please be there at {time}.
Start: {time}.
"""),
        "topic": _lines("""
We will talk about the {topic}.
The topic is the {topic}.
Topic: {topic}.
It is about the {topic}.
On the agenda: {topic}.
Subject: {topic}.
"""),
        "due time": _lines("""
It starts on {due} at {time}.
The date is {due}, {time}.
See you on {due} at {time}.
"""),
        "room": _lines("""
The room is {room}.
We are in room {room}.
Room: {room}.
Come to room {room}.
"""),
        "duration": _lines("""
It will take {duration} minutes.
Duration: {duration} minutes.
We need about {duration} minutes.
Plan {duration} minutes.
"""),
        "attendees": _lines("""
{attendees} will come.
Also present: {attendees}.
With us will be {attendees}.
Guests: {attendees}.
{attendees} have said yes.
"""),
    },
    extras=("room", "duration", "attendees", "email", "phone", "company"),
    due_labels=("Date", "Day", "Meeting date", "When", "On"),
)

APPLICATION = Family(
    titles=_lines("""
APPLICATION
Job application
Application
New candidate
Candidate profile
"""),
    cores=_lines("""
I would like to apply for the job as {role}.
I am applying for the position of {role} in {city}.
{person} applies for the job as {role}.
{person} from {city} is applying as {role} with {years} years of experience.
I have worked as a {role} for {years} years and want to join you.
Please consider my application as {role}.
My name is {person} and I want to work for you as a {role}.
We have an application from {person}, {city}, for the post of {role}.
I read that you are looking for a {role}.
With {years} years of experience I apply as {role}.
{person}, a {role} from {city}, wants to work with us.
Application of {person} as {role}: {years} years of experience, can start on {due}.
A new candidate for the {role} job: {person} from {city}.
I am a {role} and could start on {due}.
As a {role} with {years} years of practice I am looking for a job in {city}.
Here is my application for the {role} job.
{person} sent us an application for the {role} job in {city}.
Enclosed is my CV for the position of {role}.
The candidate {person} ({city}) has {years} years of experience as a {role}.
I hope to work as a {role} at your company from {due}.
"""),
    mandatory=("person", "city", "role", "years", "due"),
    sentences={
        "years": _lines("""
I have {years} years of experience.
Experience: {years} years.
I have done this for {years} years.
{years} years of experience.
I bring {years} years of practice.
"""),
        "due": _lines("""
I can start on {due}.
Possible start: {due}.
I am free from {due}.
Start date: {due}.
I could begin on {due}.
Available from {due}.
The first day could be {due}.
"""),
        "skills": _lines("""
Skills: {skills}.
I am good at {skills}.
My skills are {skills}.
I know {skills}.
"""),
        "salary": _lines("""
I would like to earn {salary_money}.
Expected salary: {salary_money}.
My salary should be {salary_money}.
I hope for {salary_money} a year.
"""),
        "age": _lines("""
I am {age} years old.
Age: {age}.
My age is {age}.
"""),
        "ref": _lines("""
The job has the number {ref}.
Job number {ref}.
Reference: {ref}.
"""),
    },
    extras=("skills", "salary", "age", "ref", "email", "phone", "company"),
    due_labels=("Start date", "Can start", "Start", "Available from", "First day"),
)

FAMILIES: dict[str, Family] = {
    "order": ORDER,
    "invoice": INVOICE,
    "shipment": SHIPMENT,
    "complaint": COMPLAINT,
    "quote": QUOTE,
    "meeting": MEETING,
    "application": APPLICATION,
}

LABELS: dict[str, tuple[str, ...]] = {
    "person": ("Customer", "Name", "Client", "Full name", "Customer name"),
    "city": ("City", "Town", "Place", "Location"),
    "item": ("Item", "Product", "Article", "Goods"),
    "quantity": ("Quantity", "Qty", "Count", "Number of pieces", "Pieces"),
    "goods": ("Goods", "Items", "Contents", "Articles"),
    "money": ("Price", "Total", "Sum", "Total price", "Amount"),
    "email": ("Email", "E-mail", "Mail"),
    "phone": ("Phone", "Tel", "Telephone"),
    "company": ("Company", "Firm"),
    "agent": ("Agent", "Handled by", "Contact in your team"),
    "ref": ("Number", "Reference", "No.", "Ref"),
    "colour": ("Colour", "Color"),
    "carrier": ("Carrier", "Sent with"),
    "origin": ("From", "Sent from", "Origin"),
    "weight": ("Weight in kg", "Weight (kg)"),
    "problem": ("Problem", "Defect", "Issue"),
    "resolution": ("Wanted", "Resolution", "Solution"),
    "severity": ("Severity", "Priority"),
    "time": ("Time", "Start", "Hour"),
    "topic": ("Topic", "Subject", "About"),
    "room": ("Room",),
    "duration": ("Minutes", "Duration in minutes"),
    "attendees": ("Guests", "With", "Attendees", "Participants"),
    "role": ("Job", "Position", "Role"),
    "years": ("Years of experience", "Experience in years"),
    "skills": ("Skills",),
    "salary": ("Salary", "Expected salary"),
    "age": ("Age",),
    "urgent": ("Urgent",),
}
