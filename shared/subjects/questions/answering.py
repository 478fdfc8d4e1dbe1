"""Answers to questions: the action's many names, and content that satisfies the schema.

A message in a conversation may be an answer, if all of its words fit the question.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from planq.shared.agentic.schema.schemas import violations
from planq.shared.kernel.questions import QuestionAnswer
from planq.shared.kernel.states import QuestionKind, QuestionStatus
from planq.shared.platform.errors import InvalidRequest, capped
from planq.shared.platform.values.decoding import decode

_ACCEPT = frozenset({"accept", "accepted", "approve", "approved", "yes", "y", "submit", "submitted"})
_CANCEL = frozenset({"cancel", "canceled", "cancelled"})
_MOST_BRACKETS = 100
"""Maximum brackets of a message that is read as JSON."""

_DECLINE = frozenset({"decline", "declined", "deny", "denied", "no", "n", "reject", "rejected"})

_ACTIONS: Mapping[QuestionStatus, frozenset[str]] = {
    QuestionStatus.ACCEPTED: _ACCEPT,
    QuestionStatus.CANCELLED: _CANCEL,
    QuestionStatus.DECLINED: _DECLINE,
}
ACTIONS: Mapping[QuestionStatus, str] = {
    QuestionStatus.ACCEPTED: "accept",
    QuestionStatus.DECLINED: "decline",
    QuestionStatus.CANCELLED: "cancel",
}
"""The documented words for actions."""

ASSENT: Mapping[str, str] = {
    "en": "ok | okay | yep | yeah | yup | sure | sure thing | of course | certainly | absolutely | agreed"
    " | confirm | confirmed | go ahead | go for it | do it | please do | please go ahead | yes please"
    " | yes do it | yes please do | yes go ahead | yes sure | yes of course | sure go ahead | ok go ahead"
    " | okay go ahead | ok do it | okay do it | ok yes | yes ok",
    "de": "ja | ja bitte | ja gerne | ja klar | ja ok | klar | jawohl | einverstanden | in ordnung"
    " | genehmigt | freigegeben | mach das | mach es | ja mach das | bitte machen | natürlich"
    " | selbstverständlich",
    "fr": "oui | ouais | oui merci | oui s'il te plaît | oui s'il vous plaît | oui d'accord | d'accord"
    " | bien sûr | vas-y | allez-y",
    "es": "sí | si | sí por favor | si por favor | sí claro | claro | claro que sí | vale | de acuerdo"
    " | adelante | por supuesto",
    "it": "sì | sì grazie | si grazie | sì certo | certo | va bene | d'accordo | procedi | proceda",
    "pt": "sim | sim por favor | sim claro | está bem | pode fazer | de acordo | com certeza",
    "nl": "ja graag | ja hoor | ja prima | akkoord | ga je gang | doe maar | natuurlijk",
    "sv, da, nb": "ja tack | ja tak | ja takk | javisst | godkänn | godkend | godkjenn",
    "pl": "tak | tak proszę | zgoda | zgadzam się | oczywiście",
    "ru": "да | да пожалуйста | да конечно | да давай | да давайте | давай | давайте | конечно | хорошо | ок"
    " | окей | согласен | согласна | подтверждаю | разрешаю",
    "uk": "так будь ласка | так звичайно | добре | звичайно | згоден | згодна | підтверджую | дозволяю",
    "tr": "evet | evet lütfen | tamam | olur | onaylıyorum | kabul ediyorum",
    "ar": "نعم | أجل | موافق | نعم من فضلك",
    "hi": "हाँ | हां | जी हाँ | जी हां | ठीक है",
    "zh": "是 | 是的 | 好 | 好的 | 可以 | 行 | 同意 | 批准",
    "ja": "はい | はい、お願いします | 同意します | 承認します",
    "ko": "네 | 예 | 네 부탁합니다 | 동의합니다 | 승인합니다",
}
"""Whole messages that approve; ambiguous ones are left out, because an approval allows an effect."""

REFUSAL: Mapping[str, str] = {
    "en": "nope | nah | no thanks | no thank you | no way | don't | do not | don't do it | do not do it"
    " | no don't | please don't | no stop | stop | not now | better not | rather not | never | never mind"
    " | nevermind | disagree | not ok | not okay",
    "de": "nein | nein danke | nein bitte nicht | nee | nö | lieber nicht | bitte nicht | auf keinen fall"
    " | niemals | abgelehnt | stopp",
    "fr": "non | non merci | surtout pas | jamais | pas d'accord | pas maintenant | refusé",
    "es": "no gracias | de ninguna manera | nunca | mejor no | ahora no | no quiero | rechazado",
    "it": "no grazie | non farlo | mai | meglio di no | non ora | rifiutato",
    "pt": "não | nao | não obrigado | não obrigada | de jeito nenhum | melhor não | agora não | nunca | recusado",
    "nl": "nee bedankt | nee dank je | nee dank u | liever niet | niet doen | nooit | afgewezen",
    "sv, da, nb": "nej | nei | nej tack | nej tak | nei takk | avslå | afvis | avslag",
    "pl": "nie | nie dziękuję | nie zgadzam się | nigdy | lepiej nie",
    "ru": "нет | нет спасибо | не надо | не нужно | не стоит | ни в коем случае | никогда | не согласен"
    " | не согласна | отказ | стоп",
    "uk": "ні | ні дякую | не треба | не потрібно | ніколи | не згоден | не згодна | відмова",
    "tr": "hayır | hayir | hayır teşekkürler | olmaz | istemiyorum | asla",
    "ar": "لا | لا شكرا | لا شكراً | كلا | غير موافق",
    "hi": "नहीं | जी नहीं | मत करो",
    "zh": "不 | 不行 | 不可以 | 不要 | 不用 | 不用了 | 不同意 | 拒绝",
    "ja": "いいえ | だめ | ダメ | やめて | やめてください | 拒否します",
    "ko": "아니요 | 아니오 | 아뇨 | 안 돼요 | 안돼요 | 거절합니다",
}
"""Whole messages that refuse, by language."""


def action_of(text: str) -> QuestionStatus:
    """Return the status that an action means; unknown words decline (see `checked_action`)."""
    return known_action(text) or QuestionStatus.DECLINED


def known_action(text: str) -> QuestionStatus | None:
    """Return the status that an action means, in any case; None if unknown."""
    word = text.strip().lower()
    return next((status for status, words in _ACTIONS.items() if word in words), None)


def checked_action(text: str) -> QuestionStatus:
    """Return the status that an action means; raises `InvalidRequest` if unknown."""
    if (status := known_action(text)) is not None:
        return status
    words = "; ".join(f"{word} ({', '.join(sorted(_ACTIONS[one] - {word}))})" for one, word in ACTIONS.items())
    message = f"expected one of {words}; found {capped(text, 40)!r}"
    raise InvalidRequest(f"action: {message}", errors=[{"pointer": "/action", "message": message}])


def content_defects(schema: Mapping[str, Any] | None, content: Any) -> list[dict[str, str]]:
    """Return how a content breaks a question's schema, as `{pointer, message}`."""
    if not isinstance(content, Mapping):
        return [{"pointer": "/content", "message": "expected an object with the answers by name"}]
    found = violations(schema, content) if schema else []
    return [{"pointer": f"/content{one.pointer}", "message": one.message} for one in found]


def answer_of_message(
    kind: QuestionKind, schema: Mapping[str, Any] | None, text: str, *, is_secret: bool = False
) -> QuestionAnswer | None:
    """Return the answer in a message, or None.

    An approval takes a whole message of assent or refusal. A form takes a JSON object or the one value it asks for:
    words for a text, yes or no for a boolean, digits for a number. A word for an action that fits no field may
    decline or cancel it. Messages never answer a secret form, an outcome or a URL question.
    """
    if kind in (QuestionKind.OUTCOME, QuestionKind.URL):
        return None
    if kind is QuestionKind.FORM and not is_secret:
        for content in _contents(schema, text.strip()):
            if not content_defects(schema, content):
                return QuestionAnswer(kind, QuestionStatus.ACCEPTED, content)
    status = _status_of_words(text) if kind is QuestionKind.APPROVAL else known_action(text.rstrip(".! "))
    if status is None or (kind is QuestionKind.FORM and status is QuestionStatus.ACCEPTED):
        return None
    return QuestionAnswer(kind, status, {} if status is QuestionStatus.ACCEPTED else None)


def _status_of_words(text: str) -> QuestionStatus | None:
    """Return the status of a message of action words only; case, commas and stops are ignored."""
    return _MESSAGES.get(_folded(text))


def _folded(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    return unicodedata.normalize("NFC", " ".join(re.sub(r"[.,!…。、！，؛،।]", " ", folded).split()))


def _messages() -> dict[str, QuestionStatus]:
    found = {word: status for status, words in _ACTIONS.items() for word in words}
    for status, table in ((QuestionStatus.ACCEPTED, ASSENT), (QuestionStatus.DECLINED, REFUSAL)):
        found |= {_folded(words): status for line in table.values() for words in line.split("|")}
    return found


_MESSAGES = _messages()


def _contents(schema: Mapping[str, Any] | None, text: str) -> list[Any]:
    """Return the possible contents of a text, likeliest first."""
    try:
        value = decode(text) if text.count("[") + text.count("{") <= _MOST_BRACKETS else None
    except ValueError:
        value = None
    is_object = isinstance(value, Mapping)
    fields = (schema or {}).get("properties")
    if not isinstance(fields, Mapping) or len(fields) != 1:
        return [value] if is_object else []
    (name,) = fields
    if is_object or isinstance(value, list):
        # Of a form, or the one value that it asks for, and else nothing: nobody means the text of a JSON document.
        return [*([value] if is_object else []), {name: value}]
    word = _status_of_words(text)
    is_yes = None if word in (None, QuestionStatus.CANCELLED) else word is QuestionStatus.ACCEPTED
    return [{name: one} for one in (text, is_yes, value) if one is not None and one != ""]
