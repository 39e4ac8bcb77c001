-------------------------------- MODULE Client --------------------------------
(* The client: what _request.py, _grantor.py and _hold.py make of an answer, as functions of what is known of one    *)
(* request. The one rule: a grant counts from the newest request of which it is certain that it left before it.      *)
EXTENDS Scripts

Never == -1
Old == CHOOSE n \in {Ttl[t] : t \in Tokens} : \A t \in Tokens : Ttl[t] <= n \* no lease is left after that many ticks
Older(age) == IF age = Never \/ age = Old THEN age ELSE age + 1
Newer(a, b) == IF a = Never \/ b < a THEN b ELSE a
NoTurn == [fence |-> 0, age |-> 0]

New ==
  [phase |-> "new",  \* then asking, waiting, held, ending, done
   since |-> Never,  \* age of the newest request that was answered "queued": any grant comes after it
   seen  |-> 0,      \* the fence in the newest such answer: a notice with none above it is stale
   loose |-> Never,  \* age of the first grant request whose link broke: it may have run, or may run yet
   turn  |-> NoTurn, \* a grant that is known of while the answer to a grant request is awaited
   again |-> FALSE,  \* that request is the second one, for a lease of which too little was left
   fence |-> 0, left |-> 0] \* while held: its fencing token, and the ticks until the local deadline

(* A request, and its reply once it has run. `age` are the ticks since it left.                                      *)
Call(op, s, t) == [op |-> op, from |-> s, tok |-> t, toks |-> {}, ttl |-> 0, bury |-> FALSE, age |-> 0,
                   reply |-> [is |-> "none"]]
Ran(call) == call.reply.is # "none"

Step(r, calls) == [req |-> r, send |-> calls]
Same(r) == Step(r, <<>>)
WhetherLoose(r) == IF r.loose = Never THEN Never ELSE Old \* its age matters no more
Asking(t, r) == Step([r EXCEPT !.phase = "asking"], <<Call("grant", Owner[t], t)>>)
Ending(t, r) == \* W10: with a tombstone if some grant request is not answered and not ahead on this very link
  Step([New EXCEPT !.phase = "ending", !.loose = WhetherLoose(r)],
       <<[Call("release", Owner[t], t) EXCEPT !.bury = r.loose # Never]>>)

(* A grant that counts from a request of that age: with less than half of it left, ask once more, then begin anyway. *)
Begin(t, r, f, age, again) ==
  LET left == Ttl[t] - age IN
  CASE left > 0 /\ (again \/ 2 * left >= Ttl[t]) ->
         Same([New EXCEPT !.phase = "held", !.fence = f, !.left = left, !.loose = WhetherLoose(r)])
    [] left <= 0 /\ again ->
         Met("too late twice", Ending(t, r))
    [] OTHER ->
         Met("too little left", Asking(t, [r EXCEPT !.turn = [fence |-> f, age |-> age], !.again = TRUE]))

Queued(r, age, fence) ==
  [r EXCEPT !.phase = "waiting", !.since = Newer(@, age), !.seen = Larger(@, fence), !.turn = NoTurn, !.again = FALSE,
            !.loose = WhetherLoose(r)]

Granted(t, r, c) ==
  LET age == IF Broken("validity from the reply") THEN 0 ELSE c.age
      Q == Queued(r, c.age, c.reply.fence)
  IN CASE r.phase # "asking" -> Same(r)
       [] c.reply.is = "granted" ->
            Begin(t, [r EXCEPT !.since = Newer(@, age)], c.reply.fence, age, r.again)
       [] c.reply.is = "queued" /\ r.turn.fence > 0 /\ (r.turn.age < Ttl[t] \/ ~r.again) ->
            Met("notice overtook the answer", Begin(t, Q, r.turn.fence, r.turn.age, r.again))
       [] OTHER ->
            Same(Q)

Stands(t, r, c) ==
  IF r.phase # "waiting" \/ t \notin c.toks THEN Same(r)
  ELSE LET n == c.reply.stand[t] IN
       CASE n = -1 ->
              Same(Queued(r, c.age, c.reply.fence))
         [] n > 0 ->
              Met("found by a re-check", Begin(t, r, n, c.age, FALSE))
         [] OTHER ->
              Met("forgotten", IF Broken("unknown is ignored") THEN Same(r) ELSE Asking(t, r))

Renewed(t, r, c) ==
  LET age == IF Broken("renewal from the reply") THEN 0 ELSE c.age IN
  CASE r.phase # "held" ->
         Met("revives nothing", Same(r))
    [] r.phase = "held" /\ c.reply.is = "taken" ->
         Met("lost", Ending(t, r))
    [] OTHER ->
         Same(IF r.left = 0 THEN r ELSE [r EXCEPT !.left = Larger(@, c.ttl - age)])

Answered(t, r, c) ==
  CASE c.op = "recheck" -> Stands(t, r, c)
    [] c.op # "recheck" /\ c.tok # t -> Same(r)
    [] c.op = "grant"   /\ c.tok = t -> Granted(t, r, c)
    [] c.op = "renew"   /\ c.tok = t -> Renewed(t, r, c)
    [] c.op = "release" /\ c.tok = t -> Same(IF r.phase = "ending" THEN [New EXCEPT !.phase = "done"] ELSE r)

(* A grant by a notice, or by the reply to another call. It counts from the newest request that was answered         *)
(* "queued"; before the first such answer, from the first request not answered, lost with its link or among `calls`. *)
Told(t, r, f, calls) ==
  LET asked == {i \in 1..Len(calls) : calls[i].op = "grant" /\ calls[i].tok = t}
      age == CASE Broken("counted from arrival") -> 0
               [] r.since # Never -> r.since
               [] r.since = Never /\ r.loose # Never -> r.loose
               [] OTHER -> calls[CHOOSE i \in asked : \A j \in asked : i <= j].age
      news == (f > r.seen \/ Broken("stale notices believed")) /\ f > r.turn.fence
  IN CASE r.phase = "waiting" /\ news ->
            Begin(t, r, f, age, FALSE)
       [] r.phase = "asking" /\ news ->
            Same([r EXCEPT !.turn = [fence |-> f, age |-> age]])
       [] r.phase = "done" -> \* W5
            Met("nobody wants it", Step(r, <<Call("release", Owner[t], t)>>))
       [] r.phase = "waiting" /\ ~news ->
            Met("stale notice", Same(r))
       [] OTHER ->
            Same(r)

(* What the session's token `t` makes of the reply of `c`, its own or another's: the grants carried in it count too. *)
Received(t, r, c, rest) ==
  LET a == Answered(t, r, c)
      carried == {n \in c.reply.mine : n.tok = t}
      b == Told(t, a.req, (CHOOSE n \in carried : TRUE).fence, rest \o a.send)
  IN IF carried = {} THEN a ELSE Step(b.req, a.send \o b.send)
===============================================================================
