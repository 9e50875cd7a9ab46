r"""Makes `fsm/pattern/unicode_tables.txt`, the Unicode properties that ECMA-262 permits in `\p{...}` and the classes of characters that are
equal when case is ignored, all without surrogates, from the tables of the installed Node.js:

    python -m scripts.unicode_tables

A line is the kind of a property, its names, `|`, and its ranges: in hexadecimal, for each the code points since the last one, and its
length. A Script_Extensions that has the characters of its Script has no line. The last line has the classes of equal characters.
Source of the names: ECMA-262, tables 65 to 68, and PropertyValueAliases.txt of Unicode.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

PATH = Path(__file__).parents[1] / "fsm" / "pattern" / "unicode_tables.txt"

CATEGORIES = """
Lu/Uppercase_Letter Ll/Lowercase_Letter Lt/Titlecase_Letter Lm/Modifier_Letter Lo/Other_Letter Mn/Nonspacing_Mark Mc/Spacing_Mark
Me/Enclosing_Mark Nd/Decimal_Number/digit Nl/Letter_Number No/Other_Number Pc/Connector_Punctuation Pd/Dash_Punctuation Ps/Open_Punctuation
Pe/Close_Punctuation Pi/Initial_Punctuation Pf/Final_Punctuation Po/Other_Punctuation Sm/Math_Symbol Sc/Currency_Symbol Sk/Modifier_Symbol
So/Other_Symbol Zs/Space_Separator Zl/Line_Separator Zp/Paragraph_Separator Cc/Control/cntrl Cf/Format Cs/Surrogate Co/Private_Use
Cn/Unassigned LC/Cased_Letter L/Letter M/Mark/Combining_Mark N/Number P/Punctuation/punct S/Symbol Z/Separator C/Other
"""
SCRIPTS = """
Adlm/Adlam Aghb/Caucasian_Albanian Ahom Arab/Arabic Armi/Imperial_Aramaic Armn/Armenian Avst/Avestan Bali/Balinese Bamu/Bamum
Bass/Bassa_Vah Batk/Batak Beng/Bengali Berf/Beria_Erfe Bhks/Bhaiksuki Bopo/Bopomofo Brah/Brahmi Brai/Braille Bugi/Buginese Buhd/Buhid
Cakm/Chakma Cans/Canadian_Aboriginal Cari/Carian Cham Cher/Cherokee Chrs/Chorasmian Copt/Coptic/Qaac Cpmn/Cypro_Minoan Cprt/Cypriot
Cyrl/Cyrillic Deva/Devanagari Diak/Dives_Akuru Dogr/Dogra Dsrt/Deseret Dupl/Duployan Egyp/Egyptian_Hieroglyphs Elba/Elbasan Elym/Elymaic
Ethi/Ethiopic Gara/Garay Geor/Georgian Glag/Glagolitic Gong/Gunjala_Gondi Gonm/Masaram_Gondi Goth/Gothic Gran/Grantha Grek/Greek
Gujr/Gujarati Gukh/Gurung_Khema Guru/Gurmukhi Hang/Hangul Hani/Han Hano/Hanunoo Hatr/Hatran Hebr/Hebrew Hira/Hiragana
Hluw/Anatolian_Hieroglyphs Hmng/Pahawh_Hmong Hmnp/Nyiakeng_Puachue_Hmong Hung/Old_Hungarian Ital/Old_Italic Java/Javanese Kali/Kayah_Li
Kana/Katakana Kawi Khar/Kharoshthi Khmr/Khmer Khoj/Khojki Kits/Khitan_Small_Script Knda/Kannada Krai/Kirat_Rai Kthi/Kaithi Lana/Tai_Tham
Laoo/Lao Latn/Latin Lepc/Lepcha Limb/Limbu Lina/Linear_A Linb/Linear_B Lisu Lyci/Lycian Lydi/Lydian Mahj/Mahajani Maka/Makasar
Mand/Mandaic Mani/Manichaean Marc/Marchen Medf/Medefaidrin Mend/Mende_Kikakui Merc/Meroitic_Cursive Mero/Meroitic_Hieroglyphs
Mlym/Malayalam Modi Mong/Mongolian Mroo/Mro Mtei/Meetei_Mayek Mult/Multani Mymr/Myanmar Nagm/Nag_Mundari Nand/Nandinagari
Narb/Old_North_Arabian Nbat/Nabataean Newa Nkoo/Nko Nshu/Nushu Ogam/Ogham Olck/Ol_Chiki Onao/Ol_Onal Orkh/Old_Turkic Orya/Oriya Osge/Osage
Osma/Osmanya Ougr/Old_Uyghur Palm/Palmyrene Pauc/Pau_Cin_Hau Perm/Old_Permic Phag/Phags_Pa Phli/Inscriptional_Pahlavi Phlp/Psalter_Pahlavi
Phnx/Phoenician Plrd/Miao Prti/Inscriptional_Parthian Rjng/Rejang Rohg/Hanifi_Rohingya Runr/Runic Samr/Samaritan Sarb/Old_South_Arabian
Saur/Saurashtra Sgnw/SignWriting Shaw/Shavian Shrd/Sharada Sidd/Siddham Sidt/Sidetic Sind/Khudawadi Sinh/Sinhala Sogd/Sogdian
Sogo/Old_Sogdian Sora/Sora_Sompeng Soyo/Soyombo Sund/Sundanese Sunu/Sunuwar Sylo/Syloti_Nagri Syrc/Syriac Tagb/Tagbanwa Takr/Takri
Tale/Tai_Le Talu/New_Tai_Lue Taml/Tamil Tang/Tangut Tavt/Tai_Viet Tayo/Tai_Yo Telu/Telugu Tfng/Tifinagh Tglg/Tagalog Thaa/Thaana Thai
Tibt/Tibetan Tirh/Tirhuta Tnsa/Tangsa Todr/Todhri Tols/Tolong_Siki Toto Tutg/Tulu_Tigalari Ugar/Ugaritic Vaii/Vai Vith/Vithkuqi
Wara/Warang_Citi Wcho/Wancho Xpeo/Old_Persian Xsux/Cuneiform Yezi/Yezidi Yiii/Yi Zanb/Zanabazar_Square Zinh/Inherited/Qaai Zyyy/Common
Zzzz/Unknown
"""
BINARY = """
ASCII_Hex_Digit/AHex Alphabetic/Alpha Bidi_Control/Bidi_C Bidi_Mirrored/Bidi_M Case_Ignorable/CI Cased Changes_When_Casefolded/CWCF
Changes_When_Casemapped/CWCM Changes_When_Lowercased/CWL Changes_When_NFKC_Casefolded/CWKCF Changes_When_Titlecased/CWT
Changes_When_Uppercased/CWU Dash Default_Ignorable_Code_Point/DI Deprecated/Dep Diacritic/Dia Emoji Emoji_Component/EComp
Emoji_Modifier/EMod Emoji_Modifier_Base/EBase Emoji_Presentation/EPres Extended_Pictographic/ExtPict Extender/Ext Grapheme_Base/Gr_Base
Grapheme_Extend/Gr_Ext Hex_Digit/Hex IDS_Binary_Operator/IDSB IDS_Trinary_Operator/IDST ID_Continue/IDC ID_Start/IDS Ideographic/Ideo
Join_Control/Join_C Logical_Order_Exception/LOE Lowercase/Lower Math Noncharacter_Code_Point/NChar Pattern_Syntax/Pat_Syn
Pattern_White_Space/Pat_WS Quotation_Mark/QMark Radical Regional_Indicator/RI Sentence_Terminal/STerm Soft_Dotted/SD
Terminal_Punctuation/Term Unified_Ideograph/UIdeo Uppercase/Upper Variation_Selector/VS White_Space/space XID_Continue/XIDC
XID_Start/XIDS
"""

_NODE = r"""
let text = ''
for (let code = 0; code < 0x110000; code++) if (code < 0xd800 || code > 0xdfff) text += String.fromCodePoint(code)
const place = (unit) => unit < 0xd800 ? unit : unit < 0xf800 ? unit + 0x800 : 0x10000 + (unit - 0xf800) / 2
const found = (property) => [...text.matchAll(new RegExp(`\\p{${property}}+`, 'gu'))].map(
  (run) => [place(run.index), place(run.index + run[0].length)])
const put = (...parts) => console.log(parts.join(' '))
const ranges = (property) => {
  let before = 0
  return found(property).map(([start, end]) => {
    const said = `${(start - before).toString(16)} ${(end - start).toString(16)}`
    before = end
    return said
  }).join(' ')
}
const [categories, scripts, binary] = JSON.parse(process.argv[1]).map((names) => names.trim().split(/\s+/))
put('#', 'Unicode', process.versions.unicode, '(made by scripts/unicode_tables.py; data: (C) Unicode, Inc., the Unicode License V3)')
for (const names of categories) put('gc', names, '|', ranges('gc=' + names.split('/')[0]))
for (const names of scripts) {
  const [own, extended] = ['sc', 'scx'].map((key) => ranges(key + '=' + names.split('/')[0]))
  put('sc', names, '|', own)
  if (own !== extended) put('scx', names, '|', extended)
}
for (const names of binary) put('binary', names, '|', ranges(names.split('/')[0]))
const cased = new Set(['CWCF', 'CWU', 'CWL', 'CWT'].flatMap(found).flatMap(
  ([start, end]) => Array.from({length: end - start}, (_, at) => start + at)))
const letters = String.fromCodePoint(...[...cased].sort((a, b) => a - b))
const classes = new Map()
for (const code of cased) {
  const equal = [...letters.matchAll(new RegExp(`\\u{${code.toString(16)}}`, 'giu'))].map(([one]) => one.codePointAt(0))
  if (equal.length > 1) classes.set(equal[0], equal.map((one) => one.toString(16)).join(','))
}
put('equal', 'in_case', '|', [...classes.keys()].sort((a, b) => a - b).map((first) => classes.get(first)).join(' '))
"""


def lines(categories: str = CATEGORIES, scripts: str = SCRIPTS, binary: str = BINARY) -> Iterator[str]:
    """Yield the lines of the file for some properties; for all, in some seconds."""
    command = ["node", "-e", _NODE, json.dumps([categories, scripts, binary])]
    yield from subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    PATH.write_text("\n".join(lines()) + "\n", encoding="ascii")
