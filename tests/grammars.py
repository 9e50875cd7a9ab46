"""Grammars in the language of Lark for tests."""

ARITHMETIC = r"""
?start: sum
?sum: product | sum "+" product -> add | sum "-" product -> subtract
?product: atom | product "*" atom | product "/" atom
?atom: NUMBER | "-" atom | NAME | "(" sum ")"
%import common.NUMBER
%import common.CNAME -> NAME
%import common.WS_INLINE
%ignore WS_INLINE
"""

JSON = r"""
?start: value
?value: object | array | string | SIGNED_NUMBER | "true" | "false" | "null"
array: "[" [value ("," value)*] "]"
object: "{" [pair ("," pair)*] "}"
pair: string ":" value
string: ESCAPED_STRING
%import common.ESCAPED_STRING
%import common.SIGNED_NUMBER
%import common.WS
%ignore WS
"""

SQL = r"""
start: "SELECT" columns "FROM" NAME ["WHERE" condition] ["LIMIT" INT]
columns: "*" | NAME ("," NAME)*
condition: condition "AND" condition | condition "OR" condition | NAME OPERATOR value | "(" condition ")"
OPERATOR: "=" | "<" | ">" | "<=" | ">="
value: INT | STRING | NAME
STRING: /'[^']*'/
NAME: /[a-zA-Z_][a-zA-Z0-9_]*/
%import common.INT
%import common.WS
%ignore WS
"""

CHESS = r"""
start: turn (" " turn)* [" " RESULT]
turn: INT ". " move [" " move]
move: (PIECE (FILE | RANK)? "x"? SQUARE | (FILE "x")? SQUARE PROMOTION? | "O-O" "-O"?) CHECK?
PIECE: /[KQRBN]/
FILE: /[a-h]/
RANK: /[1-8]/
SQUARE: /[a-h][1-8]/
PROMOTION: /=[QRBN]/
CHECK: /[+#]/
RESULT: "1-0" | "0-1" | "1/2-1/2"
%import common.INT
"""

CSV = r"""
start: row ("\n" row)* "\n"?
row: field ("," field)*
field: RAW | QUOTED |
RAW: /[^",\n]+/
QUOTED: /"([^"]|"")*"/
"""

TEMPLATES = r"""
start: separated{NUMBER, ","} | words
separated{item, separator}: item (separator item)*
words: WORD~2..3 ";"
NUMBER: /[0-9]+/
WORD: /[a-z]+/i
%ignore " "
"""

STATEMENTS = r"""
start: (statement ";")+
statement: "if" NAME "then" statement | "let" NAME "=" value | NAME "=" value | "print" value
value: NUMBER ".." NUMBER | NUMBER | NAME | COMMENT NAME
NUMBER: /[0-9]+(\.[0-9]+)?/
NAME: /[a-z_][a-z0-9_]*/i
COMMENT: /\/\*.*?\*\//
%ignore /[ \n]+/
"""

NULLABLE = 'start: a b a "!"\na: "x"?\nb: start? "q"*'
UNITS = 'start: a\na: b | "x"\nb: a | "y" c\nc: | c "z"'
AMBIGUOUS = 'start: start start | "a"'
HIDDEN = 'start: n start "x" | "y"\nn: "z"?'

INDENTED = r"""
start: (statement _NEWLINE)+
statement: "if" NAME ":" _NEWLINE _INDENT start _DEDENT | NAME
%declare _INDENT _DEDENT
_NEWLINE: /\n/
NAME: /[a-z]+/
"""
