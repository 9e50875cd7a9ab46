"""backtrack_sampler's replace strategy: the end of a record is replaced twice, so that the model goes on, with a ban beside it."""

from outlines_cont import continuous, generate, models, policies


def main() -> None:
    model = models.tiny()
    longer = policies.replace({"}": ',"note":"'}, at_most=2)
    plain = policies.ban(["JPY", "USD"])
    prompt = "Message: Hello, this is Marta Keller from Porto. Please send 12 desk lamps.\nRecord: "
    state = continuous(generate.text(model))(prompt, max_tokens=90, policies=[longer, plain])
    print(state.values[0][0])
    print(longer.counts(state)[0][0], "replaced,", int(state.retries), "retries")


if __name__ == "__main__":
    main()
